"""Continuous redundancy: claimed and corrected counts, Jacobians of small models, checks on real
checkpoints, the falsifier.
"""

from __future__ import annotations

from normgauge.tables import BOOL, FLOAT, INT, STRING, Tables, schema

tables = Tables(
    {
        "redundancy_counts": schema(
            ("architecture", STRING, "!shape, model id, or small model"),
            (
                "source",
                STRING,
                "!where its config comes from: shape, checkpoint, or small model (random weights)",
            ),
            ("family", STRING, "!architecture family"),
            ("norm_kind", STRING, "!kind of the norms on the primary residual stream"),
            ("placement", STRING, "!norm placement"),
            ("positions", STRING, "!how positions enter: absolute, rotary or relative"),
            ("tied", BOOL, "!whether the readout is the token embedding"),
            ("width", INT, "!d of the primary stream", "coordinates"),
            ("head_size", INT, "!d_h", "coordinates"),
            ("heads", INT, "!n_h, query heads of a layer", "heads"),
            ("attention_layers", INT, "!n_t, attention layers of all stacks", "layers"),
            ("parameters", INT, "!stored values, tied ones once", "parameters"),
            ("claimed", INT, "!2 n_t n_h d_h^2 + (d - 1)(d - 2) / 2", "directions"),
            ("claimed_share", FLOAT, "!claimed over parameters", "share"),
            ("published_share", FLOAT, "the published share", "share"),
            (
                "stated_parameters",
                INT,
                "size under which the model was introduced, where its tensors hold another",
                "parameters",
            ),
            ("claimed_share_stated", FLOAT, "claimed over stated_parameters", "share"),
            (
                "status",
                STRING,
                "!claimed_share, rounded, against the published share: reproduced, reproduced with "
                "the stated parameter count "
                "alone, deviates, or not published",
            ),
            ("corrected", INT, "!sum of the dimensions of the symmetries that hold", "directions"),
            ("corrected_share", FLOAT, "!corrected over parameters", "share"),
            (
                "jacobian_nullity",
                INT,
                "parameters minus the rank of the output Jacobian, where it was measured",
                "directions",
            ),
            ("unused", INT, "parameters that no output depends on", "parameters"),
            (
                "agrees",
                BOOL,
                "whether redundancy_jacobian agrees: its rank, its count and its symmetries",
            ),
        ),
        "redundancy_symmetries": schema(
            ("architecture", STRING, "!as in redundancy_counts"),
            ("symmetry", STRING, "!family of symmetries (docs/redundancy.md)"),
            ("places", INT, "!spaces, norms, maps or layers that have it", "places"),
            ("dimension", INT, "!directions of all of them", "directions"),
            ("share", FLOAT, "!dimension over parameters", "share"),
        ),
        "redundancy_jacobian": schema(
            ("architecture", STRING, "!small model; without gains, or trained, where it says so"),
            ("parameters", INT, "!columns of the Jacobian", "parameters"),
            ("sequences", INT, "!random inputs", "sequences"),
            ("rows", INT, "!random combinations of all outputs", "rows"),
            ("rank", INT, "!singular values above the floor", "directions"),
            ("nullity", INT, "!parameters minus rank", "directions"),
            ("corrected", INT, "!sum of the dimensions of the symmetries", "directions"),
            (
                "tangent_rank",
                INT,
                "!dimension of the span of the symmetries' tangents; below corrected if they "
                "overlapped",
                "directions",
            ),
            (
                "unused",
                INT,
                "!columns that are zero: parameters that no output depends on",
                "parameters",
            ),
            (
                "explained",
                INT,
                "!dimension of the span of the tangents and the unused parameters",
                "directions",
            ),
            (
                "smallest_nonzero",
                FLOAT,
                "!smallest singular value above the floor, over the largest",
            ),
            (
                "largest_zero",
                FLOAT,
                "!largest singular value at or below the floor, over the largest; 0 at full rank",
            ),
            ("floor", FLOAT, "!max(rows, parameters) times the float64 epsilon"),
            ("decided", BOOL, "!whether smallest_nonzero is a thousand floors or more"),
            (
                "violation",
                FLOAT,
                "!largest entry of the Jacobian times the unit tangents, over its largest entry",
            ),
            (
                "agrees",
                BOOL,
                "!whether the rank is decided, nullity equals explained, corrected equals "
                "tangent_rank, and violation is at most 1e-6",
            ),
        ),
        "redundancy_hessian": schema(
            ("architecture", STRING, "!small model, trained here"),
            ("loss_before", FLOAT, "!mean loss at the random weights it starts from", "nats"),
            ("loss", FLOAT, "!the same where L-BFGS stopped", "nats"),
            ("gradient", FLOAT, "!norm of the gradient there"),
            ("largest_eigenvalue", FLOAT, "!of the Hessian of the loss there, by size"),
            (
                "mean_eigenvalue",
                FLOAT,
                "!trace over parameters and largest_eigenvalue: how a random direction curves",
            ),
            ("direction", STRING, "!family of symmetries, or off the symmetries"),
            ("directions", INT, "!unit vectors that were tried", "directions"),
            (
                "curvature",
                FLOAT,
                "!|t H t| over largest_eigenvalue: the largest along a family, the least off them",
            ),
            (
                "orbit",
                FLOAT,
                "!|t H t + g c|, c the second derivative of the family's orbit: what the gradient "
                "leaves of curvature is taken out; off the symmetries as curvature",
            ),
            ("symmetric", BOOL, "!whether the directions are a family's"),
        ),
        "redundancy_checks": schema(
            ("model", STRING, "!model id"),
            ("revision", STRING, "!revision"),
            (
                "symmetry",
                STRING,
                "!family of symmetries, at a random place, in all its places at once; or a control",
            ),
            (
                "dimension",
                INT,
                "!directions of the family; 0 for discrete symmetries and controls",
                "directions",
            ),
            (
                "symmetric",
                BOOL,
                "!whether it is a symmetry; else a control, which must change the function",
            ),
            ("seed", INT, "!seed of the place"),
            ("max_abs_deviation", FLOAT, "!largest absolute difference of the outputs", "logit"),
            ("relative_deviation", FLOAT, "!the same over the largest absolute output"),
            (
                "predicted_effect",
                FLOAT,
                "of a control: how far it is from a symmetry, relative to what it changes; null of "
                "a symmetry",
            ),
            (
                "verdict",
                STRING,
                "!passed: relative deviation at most 1e-10 of a symmetry, at least 1e-7 of a "
                "control, in float64; failed; or no power: "
                "the control predicts an effect below a hundred tolerances",
            ),
        ),
        "redundancy_falsifier": schema(
            ("test", STRING, "!what is compared before and after"),
            ("architecture", STRING, "!block, or the norm alone"),
            ("norm_kind", STRING, "!norm kind"),
            ("gain", STRING, "!random (and random biases), or one (and biases zero)"),
            (
                "value_rule",
                STRING,
                "!by what the value map moves: inverse of g, or g as it is printed",
            ),
            (
                "max_abs_difference",
                FLOAT,
                "!largest absolute difference over 100 sequences of 4 tokens",
                "activation",
            ),
            ("relative_difference", FLOAT, "!the same over the largest absolute output"),
            (
                "predicted_effect",
                FLOAT,
                "how far gains, biases and value maps are from passing the rotation, relative; "
                "null where the claim must hold",
            ),
            ("holds", BOOL, "!whether max_abs_difference is at most 1e-12"),
        ),
    }
)
