"""The failing check: it fails on an export that is wrong, and passes on one that is right.

CELL=2 python -m unittest -v test_export                   of made/export-2
CELL=2 EXPORT=FOLDER python -m unittest -v test_export     of an export of your own, of the same checkpoint

In the runtime's environment, after reference.py and noise.py. pytest runs it
too. The bound is in results.json ("check").
"""

from __future__ import annotations

import os
import unittest
from pathlib import Path

import given

CELL = int(os.environ.get("CELL") or 0)
FOLDER = Path(os.environ.get("EXPORT") or given.MADE / f"export-{CELL}")
BOUND = given.result(CELL)["check"]["bound"] if CELL else None


@unittest.skipUnless(CELL, "set CELL to the number of a cell of results.json")
class Export(unittest.TestCase):
    found: dict | None = None

    def numbers(self) -> dict[str, dict]:
        """Every prompt's numbers, measured once."""
        if not (FOLDER / "genai_config.json").exists():
            self.skipTest(f"there is no export in {FOLDER.name}")
        if Export.found is None:
            import compare

            found = compare.measured(CELL, FOLDER)
            del found[""]
            Export.found = found
        return Export.found

    def test_the_builder_ends_well(self):
        log, ended = (given.MADE / f"export-{CELL}.{end}" for end in ("log", "exit"))
        if ended.exists() and "EXPORT" not in os.environ:
            said = (log.read_text(encoding="utf-8", errors="replace").strip() or "nothing").splitlines()[-1]
            code = ended.read_text(encoding="utf-8").strip()
            self.assertEqual(code, "0", f"the builder ended with {code} and said: {said}")
        for name in ("genai_config.json", "model.onnx"):
            self.assertTrue((FOLDER / name).exists(), f"the builder wrote no {name}")

    def test_the_tokens_are_the_references(self):
        for name, numbers in self.numbers().items():
            with self.subTest(prompt=name):
                self.assertTrue(numbers["identical"], f"token {numbers['matched'] + 1} is another: {numbers['text']!r}")

    def test_the_logits_are_near_the_references(self):
        for name, numbers in self.numbers().items():
            with self.subTest(prompt=name):
                for what in ("largest", "forced"):
                    multiple = given.times(numbers[what], numbers["floor"])
                    if multiple is not None:
                        self.assertLessEqual(multiple, BOUND, f"{what} difference in multiples of the noise")


if __name__ == "__main__":
    unittest.main()
