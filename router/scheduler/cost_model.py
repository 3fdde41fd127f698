"""Cost model of a step: seconds = a + b * rows + c * chunk tokens + d * context read, learned while serving.

The four coefficients start from the measurements of warm-up and follow the answers by recursive least squares, as
multipliers that may drift a little from step to step: a coefficient that no step depends on keeps its value, and old
steps are forgotten where new ones carry more information. Errors are relative, so the arithmetic uses shares, each
term's part of the predicted time. If several steps in a row are off in the same direction, the machine has become
faster or slower, most often because another program started or ended: all coefficients are scaled at once, and learning
restarts from there. `safety_factor` is the factor by which an unlucky step takes longer than predicted.
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence as GenericSequence
from dataclasses import dataclass
from statistics import median

from router.model_info import StepMeasurement

RATIO_NOISE_VARIANCE = 0.01  # variance of actual / predicted on a quiet machine
MAX_MULTIPLIER_VARIANCE = 0.25  # variance of a multiplier at the start, and never more
VARIANCE_GROWTH_PER_STEP = 4e-6  # growth of each variance per step
RATIO_CLIP = 1.5  # actual / predicted is clipped to this factor, in both directions
# no coefficient falls below this part of its start value: a multiplier could hardly raise it again
MIN_COEFFICIENT_FRACTION = 0.1
SURPRISE_RATIO = 1.25  # factor, in both directions, from which a step counts as a surprise
SPEED_CHANGE_STREAK = 8  # this many in a row in the same direction mean that the speed of the machine has changed
RATIO_WINDOW = 256
INITIAL_SAFETY_FACTOR, MIN_SAFETY_FACTOR = 1.3, 1.05
SAFETY_QUANTILE = 0.995
# A ratio above OUTLIER_RATIO times the median is an outlier of the machine and predicts nothing about the next step.
OUTLIER_RATIO = 2.0
MIN_RATIOS_FOR_QUANTILE = 16

CostTerms = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class StepLoad:
    """Quantities of a step that its duration depends on."""

    rows: int = 0
    chunk_tokens: int = 0
    context: int = 0


class CostModel:
    """Predictor of step times that learns from every observed step."""

    __slots__ = ("_coefficients_before_streak", "_covariance", "_min_coefficients", "_recent_ratios", "_sorted_ratios",
                 "_streak", "_streak_sign", "coefficients")

    def __init__(self, coefficients: CostTerms) -> None:
        self._restart_learning(coefficients)

    def _restart_learning(self, coefficients: CostTerms) -> None:
        """Start learning from these coefficients, with the uncertainty of those from warm-up."""
        self.coefficients = coefficients
        self._min_coefficients = tuple(MIN_COEFFICIENT_FRACTION * c for c in coefficients)
        self._covariance = [[MAX_MULTIPLIER_VARIANCE if i == j else 0.0 for j in range(4)] for i in range(4)]
        self._recent_ratios: deque[float] = deque()  # the last RATIO_WINDOW ratios of actual to predicted time
        self._sorted_ratios: list[float] = []  # the same, in order of size
        self._streak: list[tuple[StepLoad, float]] = []  # the latest steps, if all were off in the same direction
        self._streak_sign = 0  # 1 where steps took longer than predicted, -1 where shorter
        self._coefficients_before_streak = coefficients  # the coefficients when the streak began

    @classmethod
    def from_measurements(cls, measurements: GenericSequence[StepMeasurement]) -> "CostModel":
        return cls(fit_coefficients(measurements))

    @property
    def safety_factor(self) -> float:
        ratios = self._sorted_ratios
        count = len(ratios)
        if count < MIN_RATIOS_FOR_QUANTILE:
            return max(INITIAL_SAFETY_FACTOR, ratios[-1] if count else 0.0)
        num_without_outliers = bisect_left(ratios, OUTLIER_RATIO * ratios[count // 2])
        return max(MIN_SAFETY_FACTOR,
                   ratios[min(num_without_outliers - 1, int(SAFETY_QUANTILE * num_without_outliers))])

    def predict(self, load: StepLoad, coefficients: CostTerms | None = None) -> float:
        """Return the seconds of a step with this load, by the present coefficients unless others are given."""
        a, b, c, d = coefficients or self.coefficients
        return a + b * load.rows + c * load.chunk_tokens + d * load.context

    def observe(self, load: StepLoad, seconds: float) -> float:
        """Learn from a step; return the factor by which all steps take longer now: 1 unless the speed has changed."""
        predicted = self.predict(load)
        if predicted <= 0.0:
            return 1.0
        if self._streak:
            ratio = seconds / self.predict(load, self._coefficients_before_streak)
        else:
            self._coefficients_before_streak = self.coefficients
            ratio = seconds / predicted
        sign = (ratio > SURPRISE_RATIO) - (ratio < 1.0 / SURPRISE_RATIO)
        if sign != self._streak_sign:
            self._streak, self._streak_sign, self._coefficients_before_streak = [], sign, self.coefficients
        if sign:
            self._streak.append((load, seconds))
        if len(self._streak) < SPEED_CHANGE_STREAK:
            self._update_coefficients(load, seconds, predicted)
            return 1.0
        streak = self._streak
        factor = median(took / self.predict(of, self._coefficients_before_streak) for of, took in streak)
        a, b, c, d = self._coefficients_before_streak
        self._restart_learning((a * factor, b * factor, c * factor, d * factor))
        for past_load, past_seconds in streak:
            self._update_coefficients(past_load, past_seconds, self.predict(past_load))
        return factor

    def _update_coefficients(self, load: StepLoad, seconds: float, predicted: float) -> None:
        """Take one step of recursive least squares for the multipliers, which are folded into the coefficients.

        Written out for the four terms: this runs after every step.
        """
        ratio = seconds / predicted
        error = min(max(ratio, 1.0 / RATIO_CLIP), RATIO_CLIP) - 1.0
        a, b, c, d = self.coefficients
        s0, s1 = a / predicted, b * load.rows / predicted  # each term's share of the prediction
        s2, s3 = c * load.chunk_tokens / predicted, d * load.context / predicted
        row0, row1, row2, row3 = covariance = self._covariance
        v0 = row0[0] * s0 + row0[1] * s1 + row0[2] * s2 + row0[3] * s3  # covariance times shares
        v1 = row1[0] * s0 + row1[1] * s1 + row1[2] * s2 + row1[3] * s3
        v2 = row2[0] * s0 + row2[1] * s1 + row2[2] * s2 + row2[3] * s3
        v3 = row3[0] * s0 + row3[1] * s1 + row3[2] * s2 + row3[3] * s3
        prediction_variance = v0 * s0 + v1 * s1 + v2 * s2 + v3 * s3
        if prediction_variance <= RATIO_NOISE_VARIANCE:  # such steps have been learned: the remaining error is noise
            self._recent_ratios.append(ratio)
            insort(self._sorted_ratios, ratio)
            if len(self._recent_ratios) > RATIO_WINDOW:
                del self._sorted_ratios[bisect_left(self._sorted_ratios, self._recent_ratios.popleft())]
        total_variance = RATIO_NOISE_VARIANCE + prediction_variance
        gains = (v0 / total_variance, v1 / total_variance, v2 / total_variance, v3 / total_variance)
        least = self._min_coefficients
        self.coefficients = (max(a * (1.0 + gains[0] * error), least[0]), max(b * (1.0 + gains[1] * error), least[1]),
                             max(c * (1.0 + gains[2] * error), least[2]), max(d * (1.0 + gains[3] * error), least[3]))
        is_clipped = not 1.0 / RATIO_CLIP < ratio < RATIO_CLIP  # then the coefficients become no more certain
        for i, (row, gain) in enumerate(zip(covariance, gains, strict=True)):
            if not is_clipped:
                row[0] -= gain * v0
                row[1] -= gain * v1
                row[2] -= gain * v2
                row[3] -= gain * v3
            row[i] = min(row[i] + VARIANCE_GROWTH_PER_STEP, MAX_MULTIPLIER_VARIANCE)


def fit_coefficients(measurements: GenericSequence[StepMeasurement]) -> CostTerms:
    """Return the non-negative coefficients that fit the measurements with the least relative error.

    A term whose best coefficient is negative is dropped and the rest solved again. Without any measurement a
    millisecond per step is assumed, which `observe` then corrects.
    """
    rows = [((1.0, float(m.rows), float(m.chunk_tokens), float(m.context)), m.seconds) for m in measurements
            if m.seconds > 0.0]
    kept_terms = [0, 1, 2, 3]
    while rows and kept_terms:
        solution = _solve_least_squares([[terms[i] / seconds for i in kept_terms] for terms, seconds in rows])
        if min(solution) >= 0.0:
            solved = dict(zip(kept_terms, solution, strict=True))
            # Each starts above zero, since a multiplier cannot change a zero.
            a, b, c, d = (max(solved.get(i, 0.0), 1e-4 * min(seconds / max(terms[i], 1.0) for terms, seconds in rows))
                          for i in range(4))
            return (a, b, c, d)
        kept_terms.pop(solution.index(min(solution)))
    return (1e-3, 1e-6, 1e-6, 1e-9)


def _solve_least_squares(rows: list[list[float]]) -> list[float]:
    """Return the x that minimizes |rows x - 1|, by normal equations with a tiny ridge that keeps them solvable."""
    n = len(rows[0])
    scale = [max(abs(row[i]) for row in rows) or 1.0 for i in range(n)]
    scaled = [[row[i] / scale[i] for i in range(n)] for row in rows]
    matrix = [[sum(r[i] * r[j] for r in scaled) + (1e-9 if i == j else 0.0) for j in range(n)]
              + [sum(r[i] for r in scaled)] for i in range(n)]
    for i in range(n):
        pivot = max(range(i, n), key=lambda k: abs(matrix[k][i]))
        matrix[i], matrix[pivot] = matrix[pivot], matrix[i]
        for k in range(n):
            if k != i:
                factor = matrix[k][i] / matrix[i][i]
                matrix[k] = [a - factor * b for a, b in zip(matrix[k], matrix[i], strict=True)]
    return [matrix[i][n] / matrix[i][i] / scale[i] for i in range(n)]
