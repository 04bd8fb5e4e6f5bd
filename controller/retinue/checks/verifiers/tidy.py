# ruff: noqa: RUF001 - the look-alikes of LaTeX commands are what is translated here
r"""Writes an answer the way math-verify reads it rightly.

Each row is something models write and the library misreads, most of them as a
*part* of the answer: it reads `2√3` as 2, `\langle 1,2\rangle` as 1.2, and
`0.\overline{3}` as 0. Pure text to text; never evaluates anything.
"""

import re
from collections.abc import Callable
from fractions import Fraction

_GLYPHS = str.maketrans(
    {
        "−": "-",
        "–": "-",
        "×": r"\times ",
        "·": r"\cdot ",
        "⋅": r"\cdot ",
        "÷": "/",
        "π": r"\pi ",
        "∞": r"\infty ",
        "≤": r"\le ",
        "≥": r"\ge ",
        "≠": r"\ne ",
        "±": r"\pm ",
        "∪": r"\cup ",
        "∩": r"\cap ",
        "∈": r"\in ",
        "∅": r"\emptyset ",
        "ℝ": r"\mathbb{R}",
        "θ": r"\theta ",
        "°": r"^\circ ",
        "½": r"\frac{1}{2}",
        "⁰": "^{0}",
        "¹": "^{1}",
        "²": "^{2}",
        "³": "^{3}",
        "⁴": "^{4}",
        "\u00a0": " ",
        "\u202f": " ",
        "，": ",",
        "（": "(",
        "）": ")",
        "€": "",
        "£": "",
        "\x00": "",
    }
)

_SPACES = r"(?:\\[,;:!> ]|\{,\}|~)"


def _repeat(match: re.Match[str]) -> str:
    """Turn `1.2\\overline{34}` into a fraction."""
    sign, whole, fixed, period = match.group("sign", "whole", "fixed", "period")
    digits = whole + fixed
    value = Fraction(int(digits + period) - int(digits or "0"), 10 ** len(fixed) * (10 ** len(period) - 1))
    return rf"{sign}\frac{{{value.numerator}}}{{{value.denominator}}}"


_REWRITES: list[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]] = [
    # Delimiters and markup around the whole.
    (re.compile(r"\s+"), " "),
    (re.compile(r"^\s*(?:\\\(|\\\[)|(?:\\\)|\\\])\s*$|(?<!\\)\$|\*\*"), ""),
    (re.compile(r"\\boldsymbol|\\displaystyle|\\(?:big|Big|bigg|Bigg)[lr]?(?![a-zA-Z])"), ""),
    (re.compile(r"\\left\s*\.|\\right\s*\."), ""),
    # Thousands: 1\,234\,567, 1{,}234, 1 234 567.
    (re.compile(rf"(?<=\d){_SPACES}(?=\d{{3}}(?!\d))"), ""),
    (re.compile(r"(?<![\d.])(\d{1,3})((?: \d{3})+)(?!\d)"), lambda match: match.group().replace(" ", "")),
    # Numbers.
    (
        re.compile(
            r"(?<!\d)(?P<sign>-?)(?P<whole>\d{0,40})\.(?P<fixed>\d{0,40})\\(?:overline|bar)\{?(?P<period>\d{1,40})\}?"
        ),
        _repeat,
    ),
    (re.compile(r"^([+-]?\d+(?:\.\d+)?)[eE]([+-]?\d+)$"), r"\1\\times 10^{\2}"),
    (re.compile(r"√\s*(\d+|[a-zA-Z])"), r"\\sqrt{\1}"),
    (re.compile(r"√\s*[({]([^(){}]*)[)}]"), r"\\sqrt{\1}"),
    (re.compile(r"\\(?:mathrm|text|operatorname)\{\s*(i|e)\s*\}"), r"\1"),
    # Units that the library keeps: 120 m^2, 5 m/s.
    (re.compile(r"(?<=[\d}])\s*(?:mm|cm|m|km|in|ft|yd|mi)\s*\^\s*\{?[23]\}?$"), ""),
    (re.compile(r"(?<=[\d}])\s*(?:m|km|cm|ft|mi)/(?:s|h|hr|min)(?:\^\{?2\}?)?$"), ""),
    # A text that holds the whole answer: \text{5 apples}.
    (re.compile(r"^\\(?:text|textbf|mathrm)\{([^{}]*\d[^{}]*)\}$"), r"\1"),
    (re.compile(r"^(\d{1,2}:\d{2})\s*(?:[AaPp]\.?[Mm]\.?)$"), r"\1"),
    # Sets and intervals.
    (re.compile(r"\\varnothing"), r"\\emptyset"),
    (re.compile(r"\\langle"), "("),
    (re.compile(r"\\rangle"), ")"),
    (re.compile(r"\\lor(?![a-zA-Z])|\\vee(?![a-zA-Z])"), r"\\text{ or }"),
    (re.compile(r"\\land(?![a-zA-Z])|\\wedge(?![a-zA-Z])"), r"\\text{ and }"),
    (re.compile(r"^\\\{\s*[a-z]\s*(?:\\in\s*\\mathbb\{R\}\s*)?(?:\\mid|\\colon|:|\|)(.*)\\\}$"), r"\1"),
    # Congruences.
    (re.compile(r"\\pmod\s*(?:\{[^{}]*\}|\d+)|\(\s*\\(?:b)?mod\s*[^()]*\)"), ""),
    (re.compile(r"^.*\\equiv"), ""),
    # Systems: one equation a line.
    (re.compile(r"\\(?:begin|end)\{(?:cases|aligned|align\*?|gathered)\}|&(?==)"), ""),
]

_TWICE_BRACKETED = re.compile(r"\(\s*\(([^()]*)\)\s*\)")
_ROW_END = re.compile(r"\\\\(?![a-zA-Z]{2})")
_PERCENT = re.compile(r"\s*(?:\\?%|(?:\\text\{)?\s*percent\s*\}?)\s*$")
_LONG_INTEGER = re.compile(r"[+-]?(?:\d{1,3}(?:,\d{3})+|\d+)")
_CHOICE = re.compile(r"\(([A-J])\)(?:\W.*)?|([A-J])(?:[.:)]\W?.*)?")


def tidy_latex(text: str) -> str:
    """Rewrite LaTeX as models write it into LaTeX that math-verify reads whole."""
    tidy = text.translate(_GLYPHS).strip()
    for pattern, replacement in _REWRITES:
        tidy = pattern.sub(replacement, tidy)
    while (once := _TWICE_BRACKETED.sub(r"(\1)", tidy)) != tidy:
        tidy = once  # twenty brackets around a number take the parser five seconds
    if r"\begin{" not in tidy:
        tidy = _ROW_END.sub(", ", tidy)
    return tidy.strip().rstrip(".,;").strip()


def split_percent(text: str) -> tuple[str, bool]:
    """Take a per cent sign off the end, and say whether there was one."""
    match = _PERCENT.search(text)
    return (text[: match.start()].strip(), True) if match else (text, False)


def find_digits(text: str) -> str | None:
    """Find the digits of a plain integer, without separators, leading zeros or plus; None for anything else."""
    bare = text.strip()
    if not bare.isascii() or not _LONG_INTEGER.fullmatch(bare):
        return None
    sign = "-" if bare.startswith("-") else ""
    digits = bare.lstrip("+-").replace(",", "").lstrip("0")
    return sign + digits if digits else "0"


def find_choice(text: str) -> str | None:
    r"""Find the letter of a multiple choice: `B`, `(B)`, `\text{(B)}\ 12`, `B. Paris`."""
    opened = re.sub(r"\\(?:text|textbf|mathrm|mathbf)\s*\{([^{}]*)\}", r"\1", text).replace("$", "").strip()
    match = _CHOICE.fullmatch(opened)
    return (match.group(1) or match.group(2)) if match else None
