"""What is public, and where it is: `__init__.py` reads this, as type checkers do."""

from pymc_subsample.advice import Advice as Advice
from pymc_subsample.advice import advise as advise
from pymc_subsample.comparison.loo import loo as loo
from pymc_subsample.correction import BarkerCorrection as BarkerCorrection
from pymc_subsample.correction import barker_correction as barker_correction
from pymc_subsample.data.rows import Rows as Rows
from pymc_subsample.diagnostics.audit import audit as audit
from pymc_subsample.diagnostics.audited import Audit as Audit
from pymc_subsample.diagnostics.efficiency import efficiency as efficiency
from pymc_subsample.diagnostics.report import Report as Report
from pymc_subsample.diagnostics.report import report as report
from pymc_subsample.expectations import expectation as expectation
from pymc_subsample.expectations import quantile as quantile
from pymc_subsample.expectations import summary as summary
from pymc_subsample.likelihood import TallModelError as TallModelError
from pymc_subsample.plots import plot_advice as plot_advice
from pymc_subsample.plots import plot_audit as plot_audit
from pymc_subsample.plots import plot_batch_sizes as plot_batch_sizes
from pymc_subsample.plots import plot_error_against_cost as plot_error_against_cost
from pymc_subsample.plots import plot_evaluations as plot_evaluations
from pymc_subsample.plots import plot_report as plot_report
from pymc_subsample.plots import plot_subsample as plot_subsample
from pymc_subsample.prediction.predict import predict as predict
from pymc_subsample.proposals import AdaptiveMetropolis as AdaptiveMetropolis
from pymc_subsample.proposals import Langevin as Langevin
from pymc_subsample.proposals import RandomWalk as RandomWalk
from pymc_subsample.schedules import Cyclical as Cyclical
from pymc_subsample.schedules import PolynomialDecay as PolynomialDecay
from pymc_subsample.steps.austerity import AusterityMH as AusterityMH
from pymc_subsample.steps.barker import MinibatchBarkerMH as MinibatchBarkerMH
from pymc_subsample.steps.confidence import ConfidenceMH as ConfidenceMH
from pymc_subsample.steps.firefly import FireflyMC as FireflyMC
from pymc_subsample.steps.gibbs import AusterityGibbs as AusterityGibbs
from pymc_subsample.steps.hmc_ecs import HMCECS as HMCECS
from pymc_subsample.steps.presets import EWSG as EWSG
from pymc_subsample.steps.presets import PSGLD as PSGLD
from pymc_subsample.steps.presets import SGHMC as SGHMC
from pymc_subsample.steps.presets import SGLD as SGLD
from pymc_subsample.steps.presets import SGNHT as SGNHT
from pymc_subsample.steps.presets import SVRGLD as SVRGLD
from pymc_subsample.steps.presets import ClusteredSGHMC as ClusteredSGHMC
from pymc_subsample.steps.scalable import ScalableMH as ScalableMH
from pymc_subsample.steps.sgmcmc import SGMCMC as SGMCMC

__version__: str
