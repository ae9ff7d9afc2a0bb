"""The view that MLflow's page of an experiment opens with: the columns that matter, and charts by variant.

MLflow keeps the state of a page in a tag of the experiment (``mlflow.sharedViewState.KEY``, its "Share" button), and an
address with ``viewStateShareKey=KEY`` opens it. The names below are those of MLflow's page, version 3.
"""

import json
from collections.abc import Sequence
from typing import Any

from reread.tracking.descriptions import ROLE, SEED

TAG = "mlflow.sharedViewState."
VARIANTS, CHARTS = "variants", "charts"
SECTION = "reread"
# In pixels, of the columns of text.
WIDTHS = {"tags.`result`": 190, "tags.`verdict`": 260, "attributes.`Source`": 360}
# Epoch by epoch, each variant's mean over seeds in a band from its lowest to its highest seed.
CURVES = ("validation_score", "validation_loss", "training_loss")


def views(split: str, scores: Sequence[str]) -> dict[str, str]:
    """Return the tags of an experiment's two pages, of its variants and of its seeds.

    scores: the metrics that its variants are judged by, the first of which sorts them.
    """
    return {f"{TAG}{name}": json.dumps(state) for name, state in
            ((VARIANTS, variants_view(split, scores)), (CHARTS, charts_view(split, scores)))}  # fmt: skip


def variants_view(split: str, scores: Sequence[str]) -> dict[str, Any]:
    """Return the table of variants and baselines: result with interval, seeds and verdict first."""
    columns = [
        "tags.`result`",
        "metrics.`variant.seeds`",
        "tags.`verdict`",
        *(f"metrics.`{split}.{score}.mean`" for score in scores),
        "attributes.`Models`",
        "attributes.`Source`",
        "attributes.`User`",
        "attributes.`Dataset`",
    ]
    return {
        "searchFilter": f"tags.{ROLE} != '{SEED}'",
        "orderByKey": f"metrics.`{split}.{scores[0]}.mean`",
        "orderByAsc": False,
        "selectedColumns": columns,
        "columnOrder": columns,
        "columnWidths": {column: WIDTHS.get(column, 130) for column in columns},
    }


def charts_view(split: str, scores: Sequence[str]) -> dict[str, Any]:
    """Return the charts of the report's seeds and of those that train, grouped by variant."""
    bars = [_chart(f"bar-{score}", "BAR", f"{split}.{score}") for score in scores]
    lines = [_line(metric) for metric in CURVES]
    return {
        "searchFilter": f"tags.{ROLE} = '{SEED}'",
        "orderByKey": "attributes.start_time",
        "orderByAsc": False,
        "selectedColumns": [f"metrics.`{split}.{score}`" for score in scores],
        "groupBy": {"aggregateFunction": "average", "groupByKeys": [{"mode": "param", "groupByData": "variant"}]},
        "useGroupedValuesInCharts": True,
        "compareRunCharts": [*bars, *lines],
        "compareRunSections": [
            {"uuid": SECTION, "name": "By variant, over seeds", "display": True, "isReordered": False,
             "deleted": False, "isGenerated": False}
        ],
        "isAccordionReordered": True,
    }  # fmt: skip


def _chart(name: str, kind: str, metric: str) -> dict[str, Any]:
    return {
        "type": kind, "uuid": name, "metricKey": metric, "metricSectionId": SECTION, "deleted": False,
        "isGenerated": False, "runsCountToCompare": 100,
    }  # fmt: skip


def _line(metric: str) -> dict[str, Any]:
    return {
        **_chart(f"line-{metric}", "LINE", metric),
        "selectedMetricKeys": [metric],
        "scaleType": "linear",
        "xAxisKey": "step",
        "xAxisScaleType": "linear",
        "yAxisKey": "metric",
        "yAxisExpressions": [],
        "selectedXAxisMetricKey": "",
        "lineSmoothness": 0,
        "useGlobalXaxisKey": False,
        "useGlobalLineSmoothing": False,
        "range": {},
    }
