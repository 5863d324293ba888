"""The tables and figures of learned artifacts. A new one is a module and a line here."""

from __future__ import annotations

from normgauge.render.declared import Drawing
from normgauge.render.learned_artifacts.kept_effects import kept_effects
from normgauge.render.learned_artifacts.typeset import learned_artifacts, learned_audits

DRAWINGS = {
    "learned_artifacts": Drawing("learned_artifacts", learned_artifacts),
    "learned_artifacts_figure": Drawing("learned_artifacts", kept_effects),
    "learned_audits": Drawing("learned_audits", learned_audits),
}
