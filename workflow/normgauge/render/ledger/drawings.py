"""The figures of the ledger. A new one is a module and a line here."""

from __future__ import annotations

from normgauge.render.declared import Drawing
from normgauge.render.ledger.claims import claims
from normgauge.render.ledger.counts import counts

DRAWINGS = {
    "ledger_counts": Drawing("ledger", counts),
    "ledger": Drawing("ledger", claims),
}
