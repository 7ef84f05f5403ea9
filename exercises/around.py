"""Wrong answers of many exercises: a function around the right one. `function`: "shift(x)"."""


def keeps_the_first(function: str, says: str = "the result is wrong.") -> dict[str, str]:
    _, parameters = function.rstrip(")").split("(")
    around = f"""\
KEPT = []


def {function}:
    if not KEPT:
        KEPT.append(right({parameters}))
    return KEPT[0]
"""
    return {"kind": "a second call", "around": around, "says": says}


def in_whole_numbers(function: str) -> dict[str, str]:
    """For a function that takes a tensor first, and returns one."""
    return _in_another_type(function, "fractions", "long")


def in_float32(function: str) -> dict[str, str]:
    """For a function that takes a tensor first, and returns one."""
    return _in_another_type(function, "numbers too large for float32", "float")


def _in_another_type(function: str, kind: str, cast: str) -> dict[str, str]:
    """Of the first parameter, and back."""
    _, parameters = function.rstrip(")").split("(")
    first, *others = parameters.split(", ")
    given = ", ".join([f"{first}.{cast}()", *others])
    around = f"""\
def {function}:
    return right({given}).to({first}.dtype)
"""
    return {"kind": kind, "around": around, "says": "the result is wrong."}
