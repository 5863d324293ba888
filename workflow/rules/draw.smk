# A new figure is a line in its study's dictionary: rule -> what it draws.
DRAWN_RULES = (
    DEAD_DRAWN
    | RECOVERY_DRAWN
    | REDUNDANCY_DRAWN
    | COMPARISON_DRAWN
    | LINEAGE_DRAWN
    | CONTROLS_DRAWN
    | LEDGER_DRAWN
    | TRAJECTORY_DRAWN
    | LAW_DRAWN
)


for drawing_rule, drawn in DRAWN_RULES.items():

    rule:
        name:
            drawing_rule
        input:
            drawn["table"],
        output:
            pdf=f"{drawn['path']}.pdf",
            svg=report(
                f"{drawn['path']}.svg",
                caption=f"../report/{drawn['name']}.rst",
                category=drawn["category"],
                labels=drawn["labels"],
            ),
        log:
            f"logs/{drawn['path']}.log",
        conda:
            "../../envs/pipeline.yaml"
        threads: 1
        resources:
            mem_mb=2000,
            runtime=20,
        params:
            code=code_of("draw.py"),
            figure=drawn["name"],
        script:
            "../scripts/draw.py"
