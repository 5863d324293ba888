"""Chains of matches, the rule of trust, and cycles, on gauges that are known."""

import numpy as np
import pytest

from normgauge.errors import InputError
from normgauge.gauge.groups import Monomial
from normgauge.trajectories.links import Link, Scope, chain, chain_of, right
from normgauge.trajectories.trust import Trust, fit

SIZE = 12
SCOPE = Scope("residual", "all sites")


def link(start, stop, seed, stride=2, wrong=()):
    """A link by a random gauge; the coordinates in `wrong` are uncertain and led by nothing."""
    certain = ~np.isin(np.arange(SIZE), wrong)
    lead = np.where(certain, 30.0, 0.0)
    return Link(SCOPE, 500, stride, start, stop, Monomial.random(SIZE, seed), certain, lead)


def same(first, second):
    assert first.gauge == second.gauge
    assert np.array_equal(first.certain, second.certain)
    assert np.array_equal(first.leads, second.leads)


def test_composition_is_a_homomorphism():
    links = [link(-1, 0, 1, 0), link(0, 2, 2, wrong=[3]), link(2, 4, 3, wrong=[5, 7])]
    whole = chain(links)
    for cut in (1, 2):
        same(chain(links[:cut]).then(chain(links[cut:])), whole)
    expected = links[0].gauge.matrix() @ links[1].gauge.matrix() @ links[2].gauge.matrix()
    assert np.array_equal(whole.gauge.matrix(), expected)
    same(whole.back().back(), whole)
    around = whole.then(whole.back())
    assert right(around.gauge, Monomial.identity(SIZE)).all()


def test_a_coordinate_is_certain_while_all_its_matches_are():
    first, second = link(-1, 0, 1, 0, wrong=[2]), link(0, 2, 2, wrong=[4])
    found = chain([first, second])
    source = int(np.flatnonzero(first.gauge.target == 4)[0])
    assert set(np.flatnonzero(~found.certain)) == {2, source}
    assert found.leads[1, source] == 0
    back = found.back()
    assert not back.certain[found.gauge.target[2]]
    assert (~back.certain).sum() == (~found.certain).sum()


def test_a_chain_has_no_gaps_and_one_stride():
    links = [link(-1, 0, 1, 0), link(0, 2, 2), link(0, 4, 5, 4), link(2, 4, 3)]
    assert len(chain_of(links, SCOPE, 500, 2)) == 3
    assert len(chain_of(links, SCOPE, 500, 4)) == 2
    with pytest.raises(InputError, match="ends at step 0 and the next begins at 2"):
        chain([links[0], links[3]])


def drawn(trust, generator, links):
    """Links of one quality each, whose matches are right as often as a rule says."""
    for _ in range(links):
        lead = np.sinh(generator.uniform(-1, 3) + generator.uniform(-1, 1, SIZE))
        yield lead, generator.random(SIZE) < trust.probability(lead)


def test_the_rule_is_found_again_and_predicts_chains_that_it_has_not_seen():
    truth, generator = Trust(-1.0, 1.2, 0.8, 0), np.random.default_rng(0)
    found = fit(drawn(truth, generator, 3000))
    assert found.intercept == pytest.approx(-1.0, abs=0.1)
    assert found.slope == pytest.approx(1.2, abs=0.1)
    assert found.level == pytest.approx(0.8, abs=0.1)
    seen, said = [], []
    for _ in range(300):
        links = [lead for lead, _ in drawn(truth, generator, 1)] * 6
        arrived = (generator.random((6, SIZE)) < truth.probability(np.array(links))).all(0)
        seen.append(arrived.mean())
        said.append(np.exp(np.log(found.probability(np.array(links))).sum(0)).mean())
    error = float(np.abs(np.array(seen) - said).mean())
    shuffled = float(np.abs(np.array(seen) - generator.permutation(said)).mean())
    assert error < 0.1
    assert shuffled > 3 * error


def test_a_rule_needs_matches_of_both_kinds():
    lead = np.linspace(0, 10, SIZE)
    for share in (True, False):
        with pytest.raises(InputError, match="no rule can be fitted"):
            fit([(lead, np.full(SIZE, share))])


def test_a_rule_says_less_of_longer_chains_and_more_of_larger_leads():
    trust = Trust(0.0, 1.0, 0.0, 1)
    links = [link(-1, 0, 1, 0), link(0, 2, 2, wrong=range(SIZE)), link(2, 4, 3, wrong=range(SIZE))]
    said = [trust.predicted(chain(links[:length])) for length in (1, 2, 3)]
    assert said == pytest.approx([1, 0.5, 0.25], abs=0.03)
