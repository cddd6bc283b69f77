# SPDX-License-Identifier: Apache-2.0
"""Tests the parser of sizes with units, such as 2GiB."""

import unittest

import spillway


class SizesTest(unittest.TestCase):
    def test_units_are_of_two_and_of_ten(self):
        for text, expected in {"4096": 4096, "1KiB": 1024, "2 GiB": 2 << 30, "1.5MiB": 3 << 19, "2GB": 2 * 10**9,
                               "3tb": 3 * 10**12, "7B": 7}.items():
            self.assertEqual(spillway.parse_size(text), expected, text)
        self.assertEqual(spillway.parse_size(12), 12)
        self.assertEqual(spillway.parse_size(None), 2**64 - 1)

    def test_what_is_no_size_is_named(self):
        for wrong in ("", "GiB", "2 XB", "-1", "1e9", "2G iB"):
            with self.assertRaisesRegex(spillway.InvalidArgument, "pinned is "):
                spillway.parse_size(wrong, "pinned")
        for wrong in (-1, 2**64):
            with self.assertRaisesRegex(ValueError, "from 0 to"):
                spillway.parse_size(wrong)


if __name__ == "__main__":
    unittest.main()
