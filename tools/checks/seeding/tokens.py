# SPDX-License-Identifier: Apache-2.0
"""Splits C++ into tokens, precisely enough to find operators and operands in code that clang-format has formatted."""

import dataclasses
import re

TOKEN = re.compile(r"""
    (?P<skip>\s+ | //[^\n]* | /\*.*?\*/ | ^[ \t]*\#(?:\\\n|[^\n])*)
  | (?P<string>(?:u8|[uUL])?R"(?P<mark>[^(\s]*)\(.*?\)(?P=mark)" | (?:u8|[uUL])?"(?:\\.|[^"\\])*" | '(?:\\.|[^'\\])+')
  | (?P<number>\.?\d(?:'?[\w.]|(?<=[eEpP])[+-])*)
  | (?P<name>[A-Za-z_]\w*)
  | (?P<sign><=>|<<=|>>=|->\*|\.\.\.|::|->|\+\+|--|<<|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|.)
""", re.VERBOSE | re.MULTILINE | re.DOTALL)

# The precedence of binary operators: a higher number binds more tightly.
PRECEDENCE = {operator: strength for strength, operators in enumerate(
    ("||", "&&", "|", "^", "&", "== !=", "< <= > >=", "<=>", "<<", "+ -", "* / %"), start=3)
    for operator in operators.split()}
ASSIGNMENTS = {"=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>="}
OPENERS = {"(": ")", "[": "]", "{": "}"}
# Keywords at which an operand ends. No chain of names begins with one.
KEYWORDS = {"return", "case", "else", "throw", "delete", "goto", "co_return", "if", "for", "while", "do", "switch",
            "break", "continue", "default", "using", "template", "typedef", "static_assert", "try", "catch", "const",
            "constexpr", "static", "auto", "struct", "class", "enum", "union", "namespace", "new", "public", "private"}


@dataclasses.dataclass(frozen=True)
class Token:
    kind: str  # string, number, name or sign
    text: str
    start: int
    end: int
    is_spaced: bool  # has space on both sides, as a binary operator has, but not a template's bracket or a unary sign


def tokenize(text):
    tokens = []
    for match in TOKEN.finditer(text):
        if match.lastgroup == "skip":
            continue
        kind = "string" if match["string"] else match.lastgroup
        start, end = match.span()
        spaced = text[start - 1:start].isspace() and text[end:end + 1].isspace()
        tokens.append(Token(kind, match[0], start, end, spaced))
    return tokens


class Code:
    """The tokens of a file, with the partner of each bracket."""

    def __init__(self, text):
        self.text = text
        self.tokens = tokenize(text)
        self.partner = {}
        open_brackets = []
        for index, token in enumerate(self.tokens):
            if token.kind != "sign":
                continue
            if token.text in OPENERS:
                open_brackets.append(index)
            elif token.text in OPENERS.values() and open_brackets:
                begin = open_brackets.pop()
                self.partner[begin], self.partner[index] = index, begin
        self.in_function = self._mark_functions()

    def sign(self, index):
        """Returns the token's text if it is not a name, number or string, else an empty string."""
        in_range = 0 <= index < len(self.tokens)
        return self.tokens[index].text if in_range and self.tokens[index].kind == "sign" else ""

    def is_binary(self, index):
        return self.sign(index) in PRECEDENCE and self.tokens[index].is_spaced

    def flat(self, begin, end):
        """Returns the tokens from begin up to end on one line, without comments."""
        parts = []
        for index in range(begin, end):
            if index > begin and self.tokens[index].start > self.tokens[index - 1].end:
                parts.append(" ")
            parts.append(self.tokens[index].text)
        return "".join(parts)

    def _mark_functions(self):
        """Returns for each token whether it is in the body of a function."""
        marks = [False] * len(self.tokens)
        index = head = 0
        while index < len(self.tokens):
            sign = self.sign(index)
            if sign == "{" and index in self.partner:
                words = {token.text for token in self.tokens[head:index]}
                end = self.partner[index]
                if "(" in words and not words & {"namespace", "class", "struct", "union", "enum", "="}:
                    marks[index + 1:end] = [True] * (end - index - 1)
                    index = end
                elif "=" in words:
                    index = end
                head = index + 1
            elif sign in (";", "}"):
                head = index + 1
            index += 1
        return marks

    def statement_begin(self, index):
        """Returns the first token of the statement, or of the part of a for's head, that holds the token."""
        while index > 0:
            before = self.sign(index - 1)
            if before in (";", "{", "}"):
                return index
            index = self.partner.get(index - 1, index - 1) if before in (")", "]") else index - 1
        return 0

    def left_operand(self, operator):
        """Returns the first token of a binary operator's left operand."""
        strength = PRECEDENCE[self.tokens[operator].text]
        index = operator
        while index > 0:
            before = index - 1
            sign = self.sign(before)
            if sign in (")", "]", "}") and before in self.partner:
                index = self.partner[before]
                continue
            if self._ends_operand(before) or (self.is_binary(before) and PRECEDENCE[sign] < strength):
                break
            index = before
        return index

    def right_operand(self, operator):
        """Returns one past the last token of a binary operator's right operand."""
        strength = PRECEDENCE[self.tokens[operator].text]
        index = operator + 1
        while index < len(self.tokens):
            sign = self.sign(index)
            if sign in OPENERS and index in self.partner:
                index = self.partner[index] + 1
                continue
            if self._ends_operand(index) or (self.is_binary(index) and PRECEDENCE[sign] <= strength):
                break
            index += 1
        return index

    def _ends_operand(self, index):
        token = self.tokens[index]
        if token.kind == "name":
            return token.text in KEYWORDS
        return token.kind == "sign" and (token.text in ASSIGNMENTS or token.text in "()[]{};,?:")

    def chain_end(self, index):
        """Returns one past the chain of names, members, calls and subscripts that begins at the token, or the token
        if none begins there."""
        begin = index
        if self.sign(index) == "*":
            index += 1
        if self.sign(index) == "(" and index in self.partner:
            index = self.partner[index] + 1
        elif index < len(self.tokens) and self.tokens[index].kind == "name" and \
                self.tokens[index].text not in KEYWORDS:
            index += 1
        else:
            return begin
        while True:
            sign = self.sign(index)
            if sign in ("(", "[") and index in self.partner:
                index = self.partner[index] + 1
            elif sign in (".", "->", "::") and index + 1 < len(self.tokens) and \
                    self.tokens[index + 1].kind == "name":
                index += 2
            else:
                return index
