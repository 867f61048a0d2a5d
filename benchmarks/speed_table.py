"""The table and the plot of the results of speed.py."""

from pathlib import Path
from typing import Any


def render(results: dict[str, Any]) -> str:
    """The table, in Markdown, with the machine above it."""
    machine = results["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    precision = machine.get("precision", "bf16")
    emulated = " AVX2 emulated: the CPU has more, and was told to use no more." if machine.get("emulated") else ""
    kept = "" if precision == "bf16" else " Freed memory kept on both sides."
    lines = [f"{machine['processor']}, {machine['threads']} threads, {precision}, {versions}.{emulated}{kept}", "",
             "| work | ours | the best of theirs | ratio | wanted | theirs with freed memory kept |",
             "| --- | --- | --- | --- | --- | --- |"]  # fmt: skip
    for row in results["rows"].values():
        sides, unit = row["sides"], row["figure"]
        if "best" not in row:
            figures = ", ".join(f"{name}: {shown(value, unit)}" for name, value in sides.items())
            extra = f", {row['ratio_load']:.2f}" if "ratio_load" in row else ""
            lines.append(f"| {row['text']} | {figures} | | {row['ratio']:.2f}{extra} | {row['wanted']} | |")
            continue
        kept = f"{row['ratio_memory_kept']:.2f}" if "ratio_memory_kept" in row else ""
        share = ""
        if "share_of_peak" in row:
            peak = sides["matmul"]["flops_per_second"] / 1e9
            share = f" ({row['share_of_peak']:.0%} of a matmul's {peak:,.0f} GFLOP/s)"
        best = ", ".join([row["best"], *(f"{name} failed" for name in row.get("failed", ()))])
        lines.append(
            f"| {row['text']} | {shown(sides['ours'], unit)}{share} | {shown(sides[row['best']], unit)} "
            f"({best}) | **{row['ratio']:.2f}** | {row['wanted']} | {kept} |"
        )
    return "\n".join(lines)


def put(text: str, document: Path, *, marker: str) -> None:
    """Replace the text between `<!-- marker -->` and `<!-- /marker -->`."""
    before, opening, rest = document.read_text(encoding="utf-8").partition(f"<!-- {marker} -->\n")
    _, closing, after = rest.partition(f"<!-- /{marker} -->")
    if not closing:
        raise ValueError(f"{document} has no markers <!-- {marker} --> and <!-- /{marker} -->")
    document.write_text(f"{before}{opening}{text}\n{closing}{after}", encoding="utf-8")


def shown(side: Any, figure: str) -> str:
    if isinstance(side, float):
        return f"{side:.2f} s"
    if figure == "memory":
        return f"{side['memory'] / 2**30:.2f} GiB"
    return f"{side['seconds']:.3f} s, {side['tokens_per_second']:,.0f} tokens/s"


def draw(results: dict[str, Any], file: Path) -> None:
    """Plot the ratio of our speed to their fastest, as bars."""
    from matplotlib.figure import Figure

    rows = [row for row in results["rows"].values() if "best" in row]
    figure = Figure(figsize=(7.5, 0.42 * len(rows) + 0.8), layout="constrained")
    axis = figure.subplots()
    names = [row["text"] for row in rows][::-1]
    axis.barh(names, [row["ratio"] for row in rows][::-1], color="#4c72b0")
    axis.plot([row["wanted"] for row in rows][::-1], names, "k|", markersize=14, label="wanted")
    axis.axvline(1, color="grey", linewidth=0.8)
    axis.set_xlabel("transformers / clozebert (time, or memory)")
    axis.tick_params(axis="y", labelsize=8)
    axis.legend()
    figure.savefig(file, dpi=130)
