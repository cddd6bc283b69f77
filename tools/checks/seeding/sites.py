# SPDX-License-Identifier: Apache-2.0
"""Finds small changes that can be made to a C++ file: of an operator, a condition, a constant or a statement."""

import dataclasses
import re

from . import tokens

SWAPS = {"<": ("<=", ">="), "<=": ("<", ">"), ">": (">=", "<="), ">=": (">", "<"), "==": ("!=",), "!=": ("==",),
         "&&": ("||",), "||": ("&&",), "+": ("-",), "-": ("+",)}
ASSIGNMENT_SWAPS = {"+=": "-=", "-=": "+=", "|=": "&=", "&=": "|="}
INTEGER = re.compile(r"(0[xX][0-9a-fA-F']+|[0-9][0-9']*)([uUlL]*)$")
MACRO = re.compile(r"[A-Z][A-Z0-9_]+$")


@dataclasses.dataclass(frozen=True, order=True)
class Site:
    """One change of one file. The text from `start` up to `end` is replaced by `switch`, in which NUMBER stands for
    the mutant's number and ORIGINAL for the original text."""

    file: str
    start: int
    end: int
    before: str  # for display, as is `after`
    after: str
    switch: str


def find_sites(file, text):
    """Returns every site of the file, in order."""
    return sorted(set(_Finder(file, text).sites()))


class _Finder:
    def __init__(self, file, text):
        self.file = file
        self.code = tokens.Code(text)

    def sites(self):
        code = self.code
        for index, token in enumerate(code.tokens):
            if not code.in_function[index] or self._is_constant(index):
                continue
            if token.kind == "sign":
                yield from self._of_sign(index, token.text)
            elif token.kind == "number":
                yield from self._of_number(index, token.text)
            elif token.kind == "name":
                yield from self._of_name(index, token.text)
            if self._begins_statement(index):
                yield from self._of_statement(index)

    def _is_constant(self, index):
        begin = self.code.statement_begin(index)
        words = {token.text for token in self.code.tokens[begin:index]}
        return bool(words & {"constexpr", "static_assert", "case", "template", "using"})

    def _site(self, begin, end, after, before=None, original="ORIGINAL", other=None):
        """Returns the site that replaces the tokens from begin up to end by `after`."""
        code = self.code
        flat = code.flat(begin, end)
        switch = f"(SPILLWAY_MUTANT(NUMBER) ? ({after}) : ({original}))"
        return Site(self.file, code.tokens[begin].start, code.tokens[end - 1].end, before or flat, other or after,
                    switch)

    def _of_sign(self, index, sign):
        code = self.code
        if code.is_binary(index) and sign in SWAPS:
            begin, end = code.left_operand(index), code.right_operand(index)
            # A + that joins strings is left out, because strings cannot be subtracted.
            joins_strings = sign == "+" and any(token.kind == "string" for token in code.tokens[begin:end])
            if begin < index and index + 1 < end and not joins_strings:
                for swap in SWAPS[sign]:
                    yield self._site(begin, end, f"{code.flat(begin, index)} {swap} {code.flat(index + 1, end)}")
        elif sign == "!":
            end = code.chain_end(index + 1)
            if end > index + 1:
                yield self._site(index, end, f"static_cast<bool>({code.flat(index + 1, end)})",
                                 other=code.flat(index + 1, end))
        elif sign in ("++", "--") and not self._in_head_of_for(index):
            end = code.chain_end(index + 1)
            if end > index + 1 and code.tokens[index].end == code.tokens[index + 1].start:
                other = "--" if sign == "++" else "++"
                yield self._site(index, end, other + code.flat(index + 1, end))

    def _of_number(self, index, text):
        match = INTEGER.match(text)
        # A > that closes a template's arguments has no space before it.
        in_template = self.code.sign(index + 1) == ">" and not self.code.tokens[index + 1].is_spaced
        if not match or in_template:
            return
        value = int(match[1].replace("'", ""), 16 if match[1][:2] in ("0x", "0X") else 10)
        yield self._site(index, index + 1, f"{value + 1}{match[2]}")

    def _of_name(self, index, name):
        code = self.code
        if name in ("true", "false"):
            yield self._site(index, index + 1, "false" if name == "true" else "true")
        elif name in ("if", "while") and code.sign(index + 1) == "(":
            begin, end = index + 2, code.partner[index + 1]
            if not self._at_top(begin, end) & ({";"} | tokens.ASSIGNMENTS):
                for value in ("true", "false") if name == "if" else ("false",):
                    yield self._site(begin, end, value, f"{name} ({code.flat(begin, end)})",
                                     "static_cast<bool>(ORIGINAL)", f"{name} ({value})")
        elif name == "return":
            end = self._statement_end(index)
            logical = {"&&", "||", "==", "!=", "<", "<=", ">", ">=", "!"}
            signs = self._at_top(index + 1, end, spaced_only=True)
            if signs & logical and "?" not in signs:
                flat = code.flat(index + 1, end)
                yield self._site(index + 1, end, f"!({flat})", f"return {flat}", "ORIGINAL", f"return !({flat})")
        elif name in ("min", "max") and code.flat(max(index - 2, 0), index) == "std::" and code.sign(index + 1) == "(":
            end = code.partner[index + 1] + 1
            other = "max" if name == "min" else "min"
            yield self._site(index - 2, end, f"std::{other}{code.flat(index + 1, end)}")

    def _of_statement(self, index):
        """Yields the changes of a call or an assignment: it is left out, or gets another operator."""
        code = self.code
        end = self._statement_end(index)
        chain = code.chain_end(index)
        if code.sign(end) != ";":
            return
        if code.sign(index) in ("++", "--"):
            if code.chain_end(index + 1) == end:
                yield self._without(index, end)
            return
        if chain == index or MACRO.match(code.tokens[index].text):
            return
        operator = code.sign(chain)
        if operator in tokens.ASSIGNMENTS:
            yield self._without(index, end)
            if operator in ASSIGNMENT_SWAPS:
                flat = f"{code.flat(index, chain)} {ASSIGNMENT_SWAPS[operator]} {code.flat(chain + 1, end)}"
                yield self._site(index, end, flat)
        elif chain == end and code.sign(end - 1) == ")" and code.tokens[index].kind == "name":
            yield self._without(index, end)

    def _without(self, begin, end):
        return self._site(begin, end, "(void)0", f"{self.code.flat(begin, end)};", "(void)(ORIGINAL)", ";")

    def _begins_statement(self, index):
        code = self.code
        before = code.sign(index - 1)
        if before in (";", "{", "}"):
            return not self._in_head_of_for(index) and not self._in_initializer(index)
        if before == ")" and index - 1 in code.partner:
            opener = code.partner[index - 1]
            return code.tokens[opener - 1].text in ("if", "for", "while")
        return code.tokens[index - 1].text == "else"

    def _statement_end(self, index):
        code = self.code
        while index < len(code.tokens) and code.sign(index) not in (";", "}", ")"):
            index = code.partner[index] + 1 if code.sign(index) in tokens.OPENERS else index + 1
        return index

    def _enclosing(self, index):
        """Returns the innermost bracket that is open at the token."""
        index -= 1
        while index >= 0 and self.code.sign(index) not in tokens.OPENERS:
            index = self.code.partner.get(index, index) - 1 if self.code.sign(index) in (")", "]", "}") else index - 1
        return index

    def _in_head_of_for(self, index):
        opener = self._enclosing(index)
        return opener > 0 and self.code.sign(opener) == "(" and self.code.tokens[opener - 1].text == "for"

    def _in_initializer(self, index):
        """Whether the enclosing brace opens an initializer list, not a block."""
        opener = self._enclosing(index)
        before = self.code.tokens[opener - 1]
        return before.text in ("=", ",", "(", "return") or (before.kind == "name" and before.text not in (
            "else", "do", "try", "const", "noexcept", "override", "mutable"))

    def _at_top(self, begin, end, spaced_only=False):
        """Returns the signs from begin up to end that are outside all brackets there."""
        code, signs, index = self.code, set(), begin
        while index < end:
            sign = code.sign(index)
            if sign in tokens.OPENERS:
                index = code.partner[index] + 1
                continue
            if sign and (not spaced_only or code.tokens[index].is_spaced or sign == "!"):
                signs.add(sign)
            index += 1
        return signs
