from snakemake.utils import min_version

min_version("9.0")


include: "workflow/rules/places.smk"


configfile: beside("config/models.yaml")
configfile: beside("config/config.yaml")


report: "workflow/report/workflow.rst"


include: "workflow/rules/studies.smk"
include: "workflow/rules/common.smk"
include: "workflow/rules/inputs.smk"
include: "workflow/rules/resources.smk"
include: "workflow/rules/acquire.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/trajectories.smk"
include: "workflow/rules/calibrate.smk"
include: "workflow/rules/capture.smk"
include: "workflow/rules/fingerprint.smk"
include: "workflow/rules/exact_recovery.smk"
include: "workflow/rules/signed_permutation.smk"
include: "workflow/rules/learned_artifacts.smk"
include: "workflow/rules/discrete_laws.smk"
include: "workflow/rules/redundancy.smk"
include: "workflow/rules/checkpoint_comparison.smk"
include: "workflow/rules/lineage.smk"
include: "workflow/rules/tabulate.smk"
include: "workflow/rules/dead_directions.smk"
include: "workflow/rules/controls.smk"
include: "workflow/rules/ledger.smk"
include: "workflow/rules/draw.smk"


localrules:
    all,
    all_tables,
    all_figures,
    smoke,
    dead_directions,
    dead_directions_scale,
    table1_scale,
    trained_vs_random_scale,
    exact_recovery,
    exact_recovery_scale,
    signed_permutation,
    signed_permutation_scale,
    trajectories,
    trajectories_scale,
    scale_8b,
    audit,
    redundancy,
    checkpoint_comparison,
    lineage,
    checkpoint_diff,
    ledger,


ALL_TABLES = (
    FIRST_TABLES
    + TABLE_TARGETS
    + EXPERIMENT_TABLES
    + GAUGE_TABLE_TARGETS
    + LEARNED_TABLE_TARGETS
    + LAW_TABLE_TARGETS
    + REDUNDANCY_TABLES
    + RECOVERY_TABLE_TARGETS
    + COMPARISON_TABLES
    + LINEAGE_TABLES
    + CONTROL_TABLES
    + TRAJECTORY_TABLE_TARGETS
    + LEDGER_TABLES
)

ALL_FIGURES = (
    FIGURE_TARGETS
    + EXPERIMENT_FIGURES
    + GAUGE_FIGURE_TARGETS
    + LEARNED_FIGURE_TARGETS
    + LAW_FIGURE_TARGETS
    + REDUNDANCY_FIGURES
    + RECOVERY_FIGURE_TARGETS
    + COMPARISON_FIGURES
    + LEDGER_FIGURES
    + LINEAGE_FIGURES
    + TRAJECTORY_FIGURE_TARGETS
)


rule all:
    default_target: True
    input:
        ALL_TABLES + ALL_FIGURES,


rule all_tables:
    input:
        ALL_TABLES,


rule all_figures:
    input:
        ALL_FIGURES,


# The main line alone, so that it stays at a minute; the other studies' targets run on the same configuration.
rule smoke:
    input:
        TABLE_TARGETS + FIGURE_TARGETS,


rule dead_directions:
    input:
        TABLE_TARGETS + FIGURE_TARGETS + EXPERIMENT_TABLES + EXPERIMENT_FIGURES,


rule dead_directions_scale:
    input:
        TABLE_TARGETS + FIGURE_TARGETS + EXPERIMENT_TABLES + EXPERIMENT_FIGURES,


rule table1_scale:
    input:
        f"{TABLES}/table1.csv",
        f"{FIGURES}/table1.pdf",


rule trained_vs_random_scale:
    input:
        f"{TABLES}/trained_vs_random.csv",
        f"{FIGURES}/trained-vs-random.pdf",


rule exact_recovery:
    input:
        RECOVERY_TABLE_TARGETS + RECOVERY_FIGURE_TARGETS,


rule exact_recovery_scale:
    input:
        RECOVERY_TABLE_TARGETS + RECOVERY_FIGURE_TARGETS,


rule signed_permutation:
    input:
        GAUGE_TABLE_TARGETS + GAUGE_FIGURE_TARGETS + LEARNED_TABLE_TARGETS + LEARNED_FIGURE_TARGETS,
        LAW_TABLE_TARGETS + LAW_FIGURE_TARGETS,


rule signed_permutation_scale:
    input:
        GAUGE_TABLE_TARGETS + GAUGE_FIGURE_TARGETS + LEARNED_TABLE_TARGETS + LEARNED_FIGURE_TARGETS,
        LAW_TABLE_TARGETS + LAW_FIGURE_TARGETS,


rule trajectories:
    input:
        TRAJECTORY_TABLE_TARGETS + TRAJECTORY_FIGURE_TARGETS,


rule trajectories_scale:
    input:
        TRAJECTORY_TABLE_TARGETS + TRAJECTORY_FIGURE_TARGETS,


rule scale_8b:
    input:
        [f"results/{model}/{revision}/summary.parquet" for model, revision in STUDY],


rule audit:
    input:
        AUDIT_PAGES,


rule redundancy:
    input:
        REDUNDANCY_TABLES + REDUNDANCY_FIGURES,


rule checkpoint_comparison:
    input:
        COMPARISON_TABLES + COMPARISON_FIGURES,


rule lineage:
    input:
        LINEAGE_TABLES + LINEAGE_FIGURES,


rule checkpoint_diff:  # the former name of checkpoint_comparison
    input:
        COMPARISON_TABLES + COMPARISON_FIGURES,


rule ledger:
    input:
        LEDGER_TABLES + LEDGER_FIGURES,


for target in TARGETS:
    if (
        not any(rule.name == target or rule.is_producer(target) for rule in workflow.rules)
        and not Path(target).exists()
    ):
        made = [
            str(path)
            for rule in workflow.rules
            for path in rule.products()
            if not path.contains_wildcard()
        ]
        refuse_target(
            target, [rule.name for rule in workflow.rules if not rule.has_wildcards()], made
        )
