"""Metrics: what a model got right, summed up on the device that computed it and read once at the end.

    metric      what a metric can do; shapes, masks and where sums are kept
    average     a sum over samples divided by their number: the form of most metrics
    mean        the mean of any value
    accuracy    the share of right classes
    distance    MAE, MSE, QuantileLoss
    auc         the area under the ROC curve, exact from `scores` or bounded from a `histogram`

The law: `update` never waits for the device, rows that `valid` marks as False count for nothing whatever they hold, and the
result does not depend on how the samples were cut into batches or spread over ranks.
"""

from stoker.train.metrics.accuracy import Accuracy
from stoker.train.metrics.auc import AUC
from stoker.train.metrics.average import Average
from stoker.train.metrics.distance import MAE, MSE, QuantileLoss
from stoker.train.metrics.mean import Mean
from stoker.train.metrics.metric import AllGather, Metric

__all__ = ["AUC", "MAE", "MSE", "Accuracy", "AllGather", "Average", "Mean", "Metric", "QuantileLoss"]
