from snakemake.utils import min_version

min_version("9.0")


configfile: "config/models.yaml"
configfile: "config/config.yaml"


report: "workflow/report/workflow.rst"


include: "workflow/rules/studies.smk"
include: "workflow/rules/common.smk"
include: "workflow/rules/acquire.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/calibrate.smk"
include: "workflow/rules/capture.smk"
include: "workflow/rules/fingerprint.smk"
include: "workflow/rules/recover.smk"
include: "workflow/rules/gauge.smk"
include: "workflow/rules/redundancy.smk"
include: "workflow/rules/compare.smk"
include: "workflow/rules/tabulate.smk"
include: "workflow/rules/draw.smk"
include: "workflow/rules/controls.smk"


localrules:
    all,
    all_tables,
    all_figures,
    smoke,
    table1_scale,
    exact_recovery,
    exact_recovery_scale,
    signed_permutation,
    signed_permutation_scale,
    audit,
    redundancy,
    checkpoint_diff,


ALL_TABLES = TABLE_TARGETS + GAUGE_TABLE_TARGETS + REDUNDANCY_TABLES + RECOVERY_TABLE_TARGETS + COMPARISON_TABLES + CONTROL_TABLES
ALL_FIGURES = FIGURE_TARGETS + GAUGE_FIGURE_TARGETS + REDUNDANCY_FIGURES + RECOVERY_FIGURE_TARGETS + COMPARISON_FIGURES


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


rule table1_scale:
    input:
        f"{TABLES}/table1.csv",
        f"{FIGURES}/table1.pdf",


rule exact_recovery:
    input:
        RECOVERY_TABLE_TARGETS + RECOVERY_FIGURE_TARGETS,


rule exact_recovery_scale:
    input:
        RECOVERY_TABLE_TARGETS + RECOVERY_FIGURE_TARGETS,


rule signed_permutation:
    input:
        GAUGE_TABLE_TARGETS + GAUGE_FIGURE_TARGETS,


rule signed_permutation_scale:
    input:
        GAUGE_TABLE_TARGETS + GAUGE_FIGURE_TARGETS,


rule audit:
    input:
        AUDIT_PAGES,


rule redundancy:
    input:
        REDUNDANCY_TABLES + REDUNDANCY_FIGURES,


rule checkpoint_diff:
    input:
        COMPARISON_TABLES + COMPARISON_FIGURES,
