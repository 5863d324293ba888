from normgauge.errors import InputError as InputError
from normgauge.live.changing import random_gauge as random_gauge
from normgauge.live.changing import transform as transform
from normgauge.live.comparing import compare as compare
from normgauge.live.directions import dead_directions as dead_directions
from normgauge.live.lineage import lineage as lineage
from normgauge.live.matching import match as match
from normgauge.live.measuring import fingerprint as fingerprint
from normgauge.live.models import describe as describe
from normgauge.live.same import canonical as canonical
from normgauge.live.same import same as same

__version__: str
