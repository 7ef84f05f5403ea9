"""How measurements differ from PyTorch's documentation, and that it says what we say it does."""

import pytest
from hand_made import cell, matrix

from collectives.backends.availability import DEVICES
from collectives.backends.claims import STATES, table
from collectives.matrix import documented, documented_calls
from collectives.spec.calls import OPS

STATEMENTS = documented.statements()


def sources(differences) -> list[str]:
    return [difference.expected.source for difference in differences]


def test_a_call_documented_as_missing_is_contradicted_by_one_cell_that_works():
    found = documented.differences(
        matrix(cell("all_to_all", op=None), cell("all_to_all", "int16", None, state="refuses"))
    )
    old, _ = documented.tables()
    assert [str(one) for one in found] == [
        f"gloo/cpu: {old.name} (torch 2.3): all_to_all: no. Measured: 1 of 2 cells work."
    ]


def test_a_call_documented_as_present_is_contradicted_only_if_no_cell_works():
    refused = cell(
        "gather", "complex64", None, state="refuses", detail="RuntimeError: Invalid scalar type"
    )
    assert documented.differences(matrix(refused, cell("gather", op=None))) == []
    found = documented.differences(matrix(refused))
    assert len(found) == len(documented.tables())
    cell_in_words = "gather(complex64) on gloo/cpu, 2 ranks"
    assert f"none of 1 cells works; {cell_in_words} refuses (RuntimeError: Invalid" in str(found[0])


def test_an_unmeasured_cell_contradicts_nothing():
    assert (
        documented.differences(
            matrix(cell("gather", op=None, state="unavailable", detail="no GPU"))
        )
        == []
    )


def test_the_two_tables_differ_in_what_gloo_learnt():
    old, new = documented.tables()
    assert old.rows.keys() == new.rows.keys()
    changed = {
        (form, where)
        for form, row in old.rows.items()
        for where in row
        if row[where] != new.rows[form][where]
    }
    assert {form for form, where in changed if where == "gloo/cpu"} == {
        "reduce_scatter",
        "all_to_all",
    }
    assert {where for _, where in changed} == {"gloo/cpu", "gloo/cuda"}
    assert {
        value for row in (*old.rows.values(), *new.rows.values()) for value in row.values()
    } == {"yes", "no", "?"}


def test_a_docstring_is_contradicted_by_cells_in_another_state():
    avg = cell(op="AVG")
    found = documented.differences(matrix(avg, cell(op="AVG", dtype="float64", state="refuses")))
    assert sources(found) == ["docstring of ReduceOp"]
    assert str(found[0]).endswith(
        "Measured: 1 of 2 cells otherwise; all_reduce(AVG, float32) on gloo/cpu, 2 ranks works."
    )


def test_a_docstring_about_another_backend_is_not_compared():
    assert documented.differences(matrix(cell(op="AVG", backend="x"))) == []


def test_a_call_that_ends_in_another_state_is_a_difference():
    refused = cell("send_to_oneself", None, None, state="refuses", detail="RuntimeError: no")
    (found,) = documented.differences(matrix(), [refused])
    assert found.expected.source == "docstring of isend"
    assert str(found).endswith("Measured: refuses (RuntimeError: no).")
    assert documented.differences(matrix(), [cell("send_to_oneself", None, None)]) == []


def test_a_docstring_that_no_longer_contains_the_statement_is_not_compared(monkeypatch):
    monkeypatch.setattr(documented, "_docstring", lambda function: "AVG works everywhere.")
    assert documented.differences(matrix(cell(op="AVG"))) == []


@pytest.mark.parametrize(
    "statement", STATEMENTS, ids=lambda one: f"{one.function[0]}-{one.call or one.form[0]}"
)
def test_every_statement_has_a_form_or_a_call_that_can_be_run(statement):
    assert bool(statement.form) != bool(statement.call)
    assert not statement.call or callable(getattr(documented_calls, statement.call))
    assert statement.state in STATES
    assert set(statement.ops) <= set(OPS)
    assert {where.split("/")[0] for where in statement.backend} <= set(DEVICES)


def test_every_statement_stands_in_the_docstrings_of_torch_2_13():
    import torch

    if not torch.__version__.startswith("2.13."):
        pytest.skip("the statements were read in torch 2.13; other versions may say other things")
    assert [one for one in STATEMENTS if not one.is_made()] == []


def test_every_call_belongs_to_a_statement():
    steps = {
        name
        for name, value in vars(documented_calls).items()
        if getattr(value, "__module__", "") == documented_calls.__name__
    }
    assert steps == {one.call for one in STATEMENTS if one.call}


def test_at_least_eight_statements_of_torch_2_13_do_not_hold_on_gloo():
    """The claims stand for the cells that a whole run measures; the calls are made."""
    import torch

    if not torch.__version__.startswith("2.13."):
        pytest.skip("counted for torch 2.13")
    tried = documented.try_calls([("gloo", "cpu")])
    assert {call["form"]: call["state"] for call in tried} == {
        "average_of_large_numbers": "wrong",
        "send_to_oneself": "refuses",
        "receive_from_oneself": "refuses",
        "reduce_scatter_of_a_stack": "refuses",
        "all_gather_into_a_stack": "refuses",
        "receive_objects_from_any": "refuses",
        "gather_along_another_dimension": "works",
        "complex_into_integers": "refuses",
    }
    cells = [
        cell(op="AVG"),
        *(
            cell(form, op=None, state="refuses")
            for form in ("all_gather:uneven", "all_to_all:uneven")
        ),
    ]
    assert all(
        "uneven" not in one["form"] or any(one["form"] in claim.form for claim in table())
        for one in cells
    )
    assert len(documented.differences(matrix(*cells), tried)) == 11
