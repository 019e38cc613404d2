"""Fills the tables of README.md and docs/ from the stored records in docs/records/.

A table stands between `<!-- table:NAME -->` and `<!-- /table:NAME -->`; NAME is a record's file
name. `--check` changes nothing and fails if a table is not what its record says.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from antiphon.eval import layout
from antiphon.eval.report import table_from_json

ROOT = Path(__file__).resolve().parent.parent
RECORDS = ROOT / "docs" / "records"
PLACE = re.compile(r"(<!-- table:([\w.-]+) -->\n).*?(<!-- /table:\2 -->)", re.DOTALL)


OTHERS = ("transformers", "vllm")
"""Peers whose precision is the record's `peer_dtype`."""


def race(record: dict[str, Any]) -> list[str]:
    """A bench record: one row a contestant, ratios to the first."""
    runs = record["prompts"] * record["repeats"]
    lines = [
        "| | tok/s | ratio (95 %) | decoding only, tok/s | ratio (95 %) | same tokens |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for i, row in enumerate(record["rows"]):
        cells = [row["name"], f"{row['tokens_per_second']:.2f}"]
        for prefix in ("", "decode_"):
            if prefix:
                speed = row["decode_tokens_per_second"]
                if not speed:  # A contestant that cannot tell when its first tokens came.
                    cells += ["-", "-"]
                    continue
                cells.append(f"{speed:.2f}")
            ratio, low, high = (row[f"{prefix}ratio{end}"] for end in ("", "_low", "_high"))
            cells.append("1" if i == 0 else f"{ratio:.2f} ({low:.2f} to {high:.2f})")
        cells.append(f"{row['same_text']}/{runs}")
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def equality(record: dict[str, Any]) -> list[str]:
    """A race run for its texts alone, on a machine too busy to time it."""
    lines = ["| | same tokens |", "| --- | --- |"]
    return lines + [
        f"| {row['name']} | {row['same_text']}/{record['prompts']} |" for row in record["rows"]
    ]


def costs(record: dict[str, Any]) -> list[str]:
    """A `bench --costs` record: milliseconds by rows."""
    rows = list(record["target_ms"])
    lines = ["| rows | " + " | ".join(rows) + " |", "| --- " * (len(rows) + 1) + "|"]
    for role in ("target", "draft"):
        times = record.get(f"{role}_ms")
        if times:
            cells = [f"{times[r]:.1f}" for r in rows]
            lines.append(f"| {role}, ms | " + " | ".join(cells) + " |")
    return lines


def rules(record: dict[str, Any]) -> list[str]:
    """A `bench --rules` record: milliseconds a block and the share of a round."""
    lines = ["| rule | ms a block | beyond exact, share of a round |", "| --- | --- | --- |"]
    exact, whole = record["rule_ms"]["exact"], record["round_ms"]
    for name, ms in record["rule_ms"].items():
        lines.append(f"| {name} | {ms:.2f} | {max(ms - exact, 0) / whole:.1%} |")
    return lines


def split(record: dict[str, Any]) -> list[str]:
    """A `bench --split` record: milliseconds a round."""
    lines = [
        "| method | requests | draft passes, ms | target pass, ms | all else, ms | its share |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    return lines + [
        f"| {row['name']} | {row['requests']:.1f} | {row['draft_ms']:.1f} | {row['target_ms']:.1f} "
        f"| {row['engine_ms']:.2f} | {row['engine_share']:.1%} |"
        for row in record["split"]
    ]


def premise(record: dict[str, Any]) -> list[str]:
    """A record of scripts/premise.py: AUROC of every score of a step."""
    parts = list(record["steps"])
    heads = [f"{part} ({record['steps'][part]})" for part in parts]
    lines = ["| AUROC (95 %) of | " + " | ".join(heads) + " |", "| --- " * (len(parts) + 1) + "|"]
    for score, found in record["premise"].items():
        cells = [
            f"{found[part]['auroc']:.2f} ({found[part]['low']:.2f} to {found[part]['high']:.2f})"
            for part in parts
        ]
        lines.append("| " + " | ".join([score, *cells]) + " |")
    return lines


def oracle(record: dict[str, Any]) -> list[str]:
    """A record of scripts/oracle.py: what gold could choose."""
    lines = ["| decisions for the draft, at most | right, % (95 %) |", "| --- | --- |"]
    return lines + [
        f"| {row['decisions']} | {100 * row['right']:.1f} "
        f"({100 * row['low']:.1f} to {100 * row['high']:.1f}) |"
        for row in record["oracle"]
    ]


def branches(record: dict[str, Any]) -> list[str]:
    """A record of scripts/branches.py: whose branch is right, and who can tell."""

    def of(found: dict[str, float]) -> str:
        interval = f"{100 * found['low']:.1f} to {100 * found['high']:.1f}"
        return f"{100 * found['agreement']:.1f} ({interval}), AUROC {found['auroc']:.2f}"

    rows = {f"right: {name}": f"{share:.1%}" for name, share in record["branches"].items()}
    for name, found in record["bound"].items():
        rows[f"problems right: {name}"] = f"{found['right']:.1%}"
    alone = "where one branch alone is right, picks that one, %"
    rows[f"{alone}: always the target's"] = f"{100 * record['always_target']:.1f}"
    for found in record["curve"]:
        rows[f"{alone}: an arbiter of {found['problems']} problems"] = of(found)
    for found in record["choices"][2::2]:
        kept = f"{found['kept']:.0%} kept, {found['won']:.1%} won, {found['lost']:.1%} lost"
        rows[f"of all mismatches, at threshold {found['threshold']:g}"] = kept
    rows["the draft is right, by the chance it was given"] = ", ".join(
        f"{found['given']:.2f}: {found['was']:.2f}" for found in record["calibration"]
    )
    rows["AUROC lost where a feature is shuffled"] = ", ".join(
        f"{name} {lost:.2f}" for name, lost in list(record["importance"].items())[:4]
    )
    size = f"{record['mismatches']} of {record['problems']} problems, {record['differ']} differ"
    return [
        f"| mismatches | {size} |",
        "| --- | --- |",
        *(f"| {k} | {v} |" for k, v in rows.items()),
    ]


def verification(record: dict[str, Any]) -> list[str]:
    """A record of scripts/verification.py: milliseconds a step."""
    heads = ("method", "steps", "refused", "drafting, ms", "verifying, ms", "its share")
    heads += ("rewriting, ms", "all, ms")
    lines = ["| " + " | ".join(heads) + " |", "| --- " * len(heads) + "|"]
    return lines + [
        f"| {row['name']} | {row['steps']:.0f} | {row['refused']:.0%} | {row['drafting']:.1f} "
        f"| {row['verifying']:.1f} | {row['verifying'] / row['all']:.0%} | {row['rewriting']:.1f} "
        f"| {row['all']:.1f} |"
        for row in record["verification"]
    ]


def table(name: str) -> str:
    """The Markdown of a record, its conditions below it."""
    record = json.loads((RECORDS / f"{name}.json").read_text())
    if record.get("kind") == "evaluation":
        return layout.markdown(table_from_json(record))
    if record.get("kind") == "equality":
        lines = equality(record)
    elif "premise" in record:
        lines = premise(record)
    elif "verification" in record:
        lines = verification(record)
    elif "oracle" in record:
        lines = oracle(record)
    elif "branches" in record:
        lines = branches(record)
    elif "rule_ms" in record:
        lines = rules(record)
    elif "split" in record:
        lines = split(record)
    else:
        lines = race(record) if "rows" in record else costs(record)
    note = f"{record['pair']}; {record['machine']}; {record['date']}."
    if "rows" in record:
        note += (
            f" {record['prompts']} prompts, at most {record['max_tokens']} tokens, "
            f"temperature {record['temperature']:g}, batch {record['batch']}."
        )
        peers = [row["name"] for row in record["rows"] if row["name"].startswith(OTHERS)]
        if "peer_dtype" in record and peers:
            note += f" Peers in {record['peer_dtype']}."
        if any(row["name"].startswith("openvino") for row in record["rows"]):
            note += f" OpenVINO GenAI with {record['peer_weights']} weights."
    return "\n".join([*lines, "", note, "", f"`{record['command']}`", ""])


def filled(text: str) -> str:
    """A page with every table made anew."""
    return PLACE.sub(lambda m: f"{m[1]}\n{table(m[2])}\n{m[3]}", text)


def main() -> int:
    """Fill all pages, or with `--check` name the stale ones."""
    stale = []
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text = page.read_text(encoding="utf-8")
        if (fresh := filled(text)) != text:
            stale.append(page.relative_to(ROOT))
            if "--check" not in sys.argv:
                page.write_text(fresh, encoding="utf-8")
    for page in stale:
        print(f"{'stale' if '--check' in sys.argv else 'filled'}: {page}")
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
