"""Writes tests/data/metrics/torchmetrics.json: values of torchmetrics for the inputs in it.

    pip install torchmetrics
    python tests/parity/metrics_reference.py tests/data/metrics/torchmetrics.json
"""
import json
import sys

import torch
import torchmetrics as tm


def rounded(tensor):
    return torch.round(tensor * 1000) / 1000


torch.manual_seed(7)
present = torch.tensor([0, 1, 2, 4])  # class 3 has no targets
inputs = {
    "scores": rounded(torch.randn(48, 5)),
    "classes": present[torch.randint(0, 4, (48,))],
    "labels": torch.randint(0, 5, (48,)),
    "scores_2d": rounded(torch.randn(8, 5, 3)),
    "classes_2d": torch.randint(0, 5, (8, 3)),
    "all_classes": torch.arange(48) % 5,
    "probability": torch.round(torch.rand(40) * 20) / 20,  # with ties
    "logit": rounded(3 * torch.randn(40)),
    "flag": torch.randint(0, 2, (40,)),
    "label_scores": rounded(torch.rand(20, 3)),
    "label_flags": torch.randint(0, 2, (20, 3)),
    "logits": rounded(torch.randn(6, 4, 7)),
    "tokens": torch.randint(0, 7, (6, 4)),
    "predicted": rounded(torch.randn(30)),
    "measured": rounded(torch.randn(30)),
    "predicted_2": rounded(torch.randn(16, 2)),
    "measured_2": rounded(torch.randn(16, 2)),
    "weights": rounded(torch.rand(30)),
}
inputs["tokens"][0, 1] = inputs["tokens"][3, 3] = -100

cases = []


def add(name, metric, predictions, targets, **options):
    """`options`: those of the C++ metric."""
    metric.update(inputs[predictions], inputs[targets])
    value = metric.compute().double()
    cases.append(dict(metric=name, predictions=predictions, targets=targets, value=value.flatten().tolist(), **options))


SCORES = dict(Accuracy=tm.Accuracy, Precision=tm.Precision, Recall=tm.Recall, F1Score=tm.F1Score)
for name, make in SCORES.items():
    for average in ("micro", "macro", "weighted", "none"):
        for top_k in (1, 2):
            add(name, make(task="multiclass", num_classes=5, average=average, top_k=top_k), "scores", "classes",
                task="multiclass", classes=5, average=average, top_k=top_k)
        add(name, make(task="multiclass", num_classes=5, average=average), "labels", "classes",
            task="multiclass", classes=5, average=average)
        add(name, make(task="multiclass", num_classes=5, average=average, ignore_index=2), "scores_2d", "classes_2d",
            task="multiclass", classes=5, average=average, ignore_index=2)
        add(name, make(task="multilabel", num_labels=3, average=average, threshold=0.4), "label_scores", "label_flags",
            task="multilabel", classes=3, average=average, threshold=0.4)
    for predictions in ("probability", "logit"):
        add(name, make(task="binary", threshold=0.6), predictions, "flag", task="binary", threshold=0.6)

NORMALIZE = dict(none=None, targets="true", predictions="pred", all="all")
for normalize, python in NORMALIZE.items():
    add("ConfusionMatrix", tm.ConfusionMatrix(task="multiclass", num_classes=5, normalize=python, ignore_index=1),
        "scores", "classes", task="multiclass", classes=5, normalize=normalize, ignore_index=1)
    add("ConfusionMatrix", tm.ConfusionMatrix(task="binary", normalize=python), "logit", "flag",
        task="binary", normalize=normalize)
    add("ConfusionMatrix", tm.ConfusionMatrix(task="multilabel", num_labels=3, normalize=python), "label_scores",
        "label_flags", task="multilabel", classes=3, normalize=normalize)

for predictions in ("probability", "logit"):
    add("AUROC", tm.AUROC(task="binary"), predictions, "flag", task="binary")
for average in ("macro", "weighted", "none"):
    add("AUROC", tm.AUROC(task="multiclass", num_classes=5, average=average), "scores", "all_classes",
        task="multiclass", classes=5, average=average)
    add("AUROC", tm.AUROC(task="multilabel", num_labels=3, average=average), "label_scores", "label_flags",
        task="multilabel", classes=3, average=average)

add("Perplexity", tm.text.Perplexity(ignore_index=-100), "logits", "tokens", ignore_index=-100)
add("MeanSquaredError", tm.MeanSquaredError(), "predicted", "measured")
add("RootMeanSquaredError", tm.MeanSquaredError(squared=False), "predicted", "measured")
add("MeanAbsoluteError", tm.MeanAbsoluteError(), "predicted", "measured")
add("R2Score", tm.R2Score(), "predicted", "measured")
add("R2Score", tm.R2Score(), "predicted_2", "measured_2", classes=2)
add("PeakSignalNoiseRatio", tm.image.PeakSignalNoiseRatio(data_range=6.0), "predicted", "measured")
add("MeanMetric", tm.MeanMetric(), "predicted", "weights")
for name, metric in dict(SumMetric=tm.SumMetric(), MinMetric=tm.MinMetric(), MaxMetric=tm.MaxMetric()).items():
    metric.update(inputs["predicted"])
    cases.append(dict(metric=name, predictions="predicted", targets="weights", value=[metric.compute().item()]))

with open(sys.argv[1], "w", encoding="utf-8") as file:
    stored = {name: dict(shape=list(t.shape), integers=not t.is_floating_point(),
                         values=[round(v, 3) if isinstance(v, float) else v for v in t.flatten().tolist()])
              for name, t in inputs.items()}
    file.write('{"torchmetrics": "%s",\n"inputs": {\n' % tm.__version__)
    file.write(",\n".join(f'"{name}": {json.dumps(t)}' for name, t in stored.items()))
    file.write('},\n"cases": [\n' + ",\n".join(json.dumps(case) for case in cases) + "]}\n")
print(len(cases), "cases, torchmetrics", tm.__version__)
