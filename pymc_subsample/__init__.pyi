"""What is public, and where it is: `__init__.py` reads this, as type checkers do."""

from pymc_subsample import proposals as proposals
from pymc_subsample import sgmcmc as sgmcmc
from pymc_subsample.choice.auto import auto as auto
from pymc_subsample.choice.block import subsampling as subsampling
from pymc_subsample.model import TallModelError as TallModelError
from pymc_subsample.results.advise import Advice as Advice
from pymc_subsample.results.advise import advise as advise
from pymc_subsample.results.audit.audit import audit as audit
from pymc_subsample.results.audit.result import Audit as Audit
from pymc_subsample.results.efficiency import efficiency as efficiency
from pymc_subsample.results.expectations import expectation as expectation
from pymc_subsample.results.expectations import quantile as quantile
from pymc_subsample.results.expectations import summary as summary
from pymc_subsample.results.loo.loo import loo as loo
from pymc_subsample.results.plots import plot_advice as plot_advice
from pymc_subsample.results.plots import plot_audit as plot_audit
from pymc_subsample.results.plots import plot_batch_sizes as plot_batch_sizes
from pymc_subsample.results.plots import plot_error_against_cost as plot_error_against_cost
from pymc_subsample.results.plots import plot_evaluations as plot_evaluations
from pymc_subsample.results.plots import plot_report as plot_report
from pymc_subsample.results.plots import plot_subsample as plot_subsample
from pymc_subsample.results.predict.predict import predict as predict
from pymc_subsample.results.report import Report as Report
from pymc_subsample.results.report import report as report
from pymc_subsample.rows.on_disk import Rows as Rows
from pymc_subsample.samplers.firefly.step import FireflyMC as FireflyMC
from pymc_subsample.samplers.gibbs.step import AusterityGibbs as AusterityGibbs
from pymc_subsample.samplers.hmc_ecs.step import HMCECS as HMCECS
from pymc_subsample.samplers.minibatch.austerity import AusterityMH as AusterityMH
from pymc_subsample.samplers.minibatch.barker import MinibatchBarkerMH as MinibatchBarkerMH
from pymc_subsample.samplers.minibatch.confidence import ConfidenceMH as ConfidenceMH
from pymc_subsample.samplers.scalable.step import ScalableMH as ScalableMH
from pymc_subsample.units.effects import effects as effects
from pymc_subsample.units.marginal import marginalize as marginalize

__version__: str
