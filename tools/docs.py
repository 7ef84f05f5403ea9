"""The generated parts of the documentation: `make docs`, or `make docs ARGS="claims steps"`.

Without a name it makes those that take seconds. Tests make all parts again, and compare them with
what stands in the pages.
"""

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tools import (
    algorithm_tables,
    card,
    claims_table,
    contents,
    elastic_table,
    engines_page,
    exercises_table,
    ideas,
    matrix_changes,
    messages_page,
    mistakes_table,
    ranks_broken,
    ranks_page,
    readme_picture,
    real_clients,
    records_table,
    script_page,
    statements_page,
    steps_page,
    training_picture,
    training_table,
)

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class GeneratedSection:
    """What `make()` returns stands in the file `path` between two marks, or is the whole file.

    `slow` sections take minutes, and what they measure may differ from run to run. Of a `sampled`
    one, a test makes only some parts again.
    """

    name: str
    path: str
    make: Callable[[], str]
    slow: bool = False
    sampled: bool = False

    def read(self) -> str:
        """The part as it stands in its file."""
        return self._split()[1].strip("\n")

    def write(self, text: str) -> None:
        if self.path.endswith(".md"):
            before, _, after = self._split()
            text = f"{before}\n\n{text.rstrip()}\n\n{after}"
        (ROOT / self.path).write_text(text, encoding="utf-8")

    def _split(self) -> tuple[str, str, str]:
        """The file up to the first mark, between the marks, and from the second one on."""
        text = (ROOT / self.path).read_text(encoding="utf-8")
        if not self.path.endswith(".md"):
            return "", text, ""
        begin = f"<!-- {self.name}: made by `make docs ARGS={self.name}`, do not edit -->"
        end = f"<!-- end of {self.name} -->"
        found = re.fullmatch(f"(.*{re.escape(begin)})(.*)({end}.*)", text, re.DOTALL)
        if not found:
            raise ValueError(f"{self.path} lacks the lines {begin} and {end}.")
        return found[1], found[2], found[3]


SECTIONS = {
    section.name: section
    for section in (
        GeneratedSection("picture", "docs/calls.svg", readme_picture.svg),
        GeneratedSection("training-picture", "docs/data_parallel.svg", training_picture.svg),
        GeneratedSection("card", "docs/card.md", card.calls),
        GeneratedSection("lessons", "README.md", contents.route),
        GeneratedSection("contents", "docs/contents.md", contents.page),
        GeneratedSection("works", "docs/backends.md", claims_table.short),
        GeneratedSection("claims", "docs/backends.md", claims_table.full),
        GeneratedSection("changes", "docs/matrix.md", matrix_changes.tables),
        GeneratedSection("records", "records/README.md", records_table.matrices),
        GeneratedSection("bandwidths", "records/README.md", records_table.bandwidths),
        GeneratedSection("sent", "docs/algorithms.md", algorithm_tables.sent),
        GeneratedSection("times", "docs/algorithms.md", algorithm_tables.times),
        GeneratedSection("times-plot", "docs/algorithm_times.svg", algorithm_tables.times_svg),
        GeneratedSection("steps", "docs/steps.html", steps_page.page),
        GeneratedSection("ranks", "docs/ranks/data.js", ranks_page.script, sampled=True),
        GeneratedSection("ranks-broken", "docs/ranks/broken.js", ranks_broken.script, slow=True),
        GeneratedSection("elastic", "docs/machines.md", elastic_table.table),
        GeneratedSection("elastic-plot", "docs/elastic_times.svg", elastic_table.svg),
        GeneratedSection("engines", "docs/engines.md", engines_page.table),
        GeneratedSection("engines-plot", "docs/engine_calls.svg", engines_page.svg),
        GeneratedSection("messages", "docs/messages.md", messages_page.entries),
        GeneratedSection("script", "docs/your-script.md", script_page.page),
        GeneratedSection("faulty", "examples/blog/faulty.py", script_page.faulty),
        GeneratedSection("exercises", "docs/exercises.md", exercises_table.page),
        GeneratedSection("statements", "docs/statements.md", statements_page.page),
        GeneratedSection("training", "docs/exactness.md", training_table.table, slow=True),
        GeneratedSection("clients", "docs/diagnosis.md", real_clients.table, slow=True),
        GeneratedSection("mistakes", "docs/mistakes.md", mistakes_table.markdown, slow=True),
        *(
            GeneratedSection(f"idea-{name}", f"docs/ideas/{name}.svg", partial(ideas.svg, name))
            for name in ideas.IDEAS
        ),
    )
}


def main(names: list[str]) -> None:
    if names == ["translations"]:
        from tools.translations import catalogs  # needs Babel, which only the site brings

        catalogs.main()
        return
    if unknown := set(names) - SECTIONS.keys():
        sys.exit(f"{', '.join(unknown)}: no generated part. These are: {', '.join(SECTIONS)}.")
    quick = [section for section in SECTIONS.values() if not section.slow]
    for section in [SECTIONS[name] for name in names] or quick:
        print(f"{section.name}: {section.path}", file=sys.stderr)
        section.write(section.make())


if __name__ == "__main__":
    main(sys.argv[1:])
