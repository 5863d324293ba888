from normgauge.ledger.table import AT_SCALE
from normgauge.published.claims import published_files

PUBLISHED = [path.stem for path in published_files(beside("config/published"))]
LEDGER_TABLES = [f"{TABLES}/ledger.{suffix}" for suffix in ("parquet", "csv")]


LEDGER_DRAWN = {
    f"draw_{name}": drawing(name, f"{TABLES}/ledger.parquet", name, result, category=category)
    for name, result, category in (
        ("ledger_counts", "Published numbers and what became of them", "Ledger"),
        ("ledger", "Published numbers beside ours", "Published numbers"),
    )
}
LEDGER_FIGURES = [f"{FIGURES}/{name}.pdf" for name in ("ledger_counts", "ledger")]


rule tabulate_ledger:
    input:
        unpack(ledger_inputs),
        claims=[beside(f"config/published/{study}.yaml") for study in PUBLISHED],
        numbers=[beside(f"config/published/numbers/{study}.csv") for study in PUBLISHED],
    output:
        parquet=f"{TABLES}/ledger.parquet",
        csv=f"{TABLES}/ledger.csv",
    log:
        f"logs/{TABLES}/ledger.log",
    conda:
        "../../envs/pipeline.yaml"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=20,
    params:
        code=code_of("tabulate_ledger.py"),
    script:
        "../scripts/tabulate_ledger.py"
