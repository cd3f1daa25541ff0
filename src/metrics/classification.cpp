#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <lockstep/base/error.h>
#include <lockstep/metrics/classification.h>

#include "base/option_check.h"
#include "tensor/shape_text.h"

namespace lockstep::metrics {
namespace {

struct Checked {
  Classification task;
  std::int64_t classes;
  double threshold = 0.5;
  std::int64_t top_k = 1;
};

/// Number of classes or labels; 1 for binary. Throws: ConfigError.
std::int64_t columns_of(const char* metric, const Checked& options) {
  const bool is_multiclass = options.task == Classification::multiclass;
  const std::int64_t least = is_multiclass ? 2 : 1;
  const bool is_binary = options.task == Classification::binary;
  OptionCheck(metric)
      .expect("classes", options.classes, is_binary || options.classes >= least, fmt::format("{} or more", least))
      .refuse_if(is_binary && options.classes > 1,
                 fmt::format("classes is {}, and the task is binary", options.classes),
                 "set task to multiclass or multilabel, or leave out classes")
      .expect("top_k", options.top_k,
              options.top_k == 1 || (options.top_k > 1 && is_multiclass && options.top_k <= options.classes),
              is_multiclass ? "1 to the number of classes" : "1, because it is not multiclass")
      .expect("threshold", options.threshold, options.threshold >= 0 && options.threshold <= 1, "0 to 1")
      .throw_problems();
  return is_binary ? 1 : options.classes;
}

[[noreturn]] void throw_shapes(const char* metric, const at::Tensor& predictions, const at::Tensor& targets,
                               const std::string& expected) {
  throw Error(fmt::format("{}: found predictions of shape {} and targets of shape {}, expected {}", metric,
                          shape_text(predictions.sizes()), shape_text(targets.sizes()), expected));
}

/// On a device it would cost a wait, and the device checks it itself.
void check_range(const char* metric, const char* what, const at::Tensor& values, const at::Tensor& counted,
                 std::int64_t end) {
  if (!values.is_cpu() || values.numel() == 0) {
    return;
  }
  const at::Tensor checked = at::where(counted, values, 0);
  const auto smallest = checked.min().item<std::int64_t>();
  const auto largest = checked.max().item<std::int64_t>();
  if (smallest < 0 || largest >= end) {
    throw Error(
        fmt::format("{}: found the {} {}, expected 0 to {}", metric, what, smallest < 0 ? smallest : largest, end - 1),
        "set the number of classes, or ignore_index");
  }
}

/// As int64. On a device the check would cost a wait.
at::Tensor class_ids(const char* metric, const at::Tensor& ids) {
  if (ids.is_floating_point() && ids.is_cpu() && !at::equal(ids, ids.trunc())) {
    throw Error(fmt::format("{}: found classes with fractions, expected whole numbers", metric),
                "of soft targets give the class with the largest share: argmax(1), or > 0.5 for two classes");
  }
  return ids.to(at::kLong);
}

at::Tensor counted_targets(const at::Tensor& targets, std::optional<std::int64_t> ignore_index) {
  return ignore_index ? targets != *ignore_index : at::ones_like(targets, at::kBool);
}

/// One such value says that all values of the data set are logits. NaN says nothing.
at::Tensor are_no_probabilities(const at::Tensor& scores) { return (scores < 0).logical_or(scores > 1); }

/// Predictions and targets of classes, int64 [N]; and which targets count.
struct ClassBatch {
  at::Tensor predictions{};
  at::Tensor targets{};
  at::Tensor counted{};
};

/// Targets of labels, int64 [N, L] with 0 and 1, and which of them count. An update cannot know whether the data set
/// has logits, so there are two predictions of each: if its values are probabilities, and if they are logits.
struct LabelBatch {
  at::Tensor predictions{};  // int64 [2, N, L] with 0 and 1
  at::Tensor targets{};
  at::Tensor counted{};
  at::Tensor logits{};  // how many values can only be logits, 0-dim
};

/// The part of a state [2, ...] that is right for the whole data set.
at::Tensor of_all_labels(const at::Tensor& state, const at::Tensor& logits) {
  return at::where(logits > 0, state[1], state[0]);
}

/// [N, L, ...] -> [N * ..., L]; binary: [...] -> [N, 1]
at::Tensor in_columns(const at::Tensor& tensor, std::int64_t labels, bool is_binary) {
  return is_binary ? tensor.reshape({-1, 1}) : tensor.movedim(1, -1).reshape({-1, labels});
}

void check_label_shapes(const char* metric, const at::Tensor& predictions, const at::Tensor& targets,
                        std::int64_t labels, bool is_binary) {
  if (predictions.sizes() != targets.sizes() || (!is_binary && (targets.dim() < 2 || targets.size(1) != labels))) {
    throw_shapes(metric, predictions, targets,
                 is_binary ? "equal shapes" : fmt::format("[N, {}, ...] for both", labels));
  }
}

LabelBatch label_batch(const char* metric, const at::Tensor& predictions, const at::Tensor& targets,
                       std::int64_t labels, bool is_binary, double threshold,
                       std::optional<std::int64_t> ignore_index) {
  check_label_shapes(metric, predictions, targets, labels, is_binary);
  LabelBatch batch{.targets = class_ids(metric, in_columns(targets, labels, is_binary))};
  batch.counted = counted_targets(batch.targets, ignore_index);
  check_range(metric, "target", batch.targets, batch.counted, 2);
  const at::Tensor values = in_columns(predictions, labels, is_binary);
  if (values.is_floating_point()) {
    batch.predictions = at::stack({values > threshold, values.sigmoid() > threshold}).to(at::kLong);
    batch.logits = are_no_probabilities(values).logical_and(batch.counted).sum();
  } else {
    batch.predictions = values.to(at::kLong).expand({2, -1, -1});
    batch.logits = at::zeros({}, batch.predictions.options());
  }
  check_range(metric, "prediction", batch.predictions, batch.counted, 2);
  return batch;
}

ClassBatch class_batch(const char* metric, const at::Tensor& predictions, const at::Tensor& targets,
                       std::int64_t classes, std::int64_t top_k, std::optional<std::int64_t> ignore_index) {
  ClassBatch batch{.targets = class_ids(metric, targets.reshape({-1}))};
  batch.counted = counted_targets(batch.targets, ignore_index);
  if (predictions.dim() == targets.dim() + 1 && predictions.size(1) == classes &&
      predictions.numel() == targets.numel() * classes) {
    const at::Tensor scores = predictions.movedim(1, -1).reshape({-1, classes});
    if (top_k == 1) {
      batch.predictions = scores.argmax(1);
    } else {
      const at::Tensor best = std::get<1>(scores.topk(top_k, 1));
      const at::Tensor found = (best == batch.targets.unsqueeze(1)).any(1);
      batch.predictions = at::where(found, batch.targets, best.select(1, 0));
    }
  } else if (predictions.sizes() == targets.sizes() && top_k == 1 && !predictions.is_floating_point()) {
    batch.predictions = class_ids(metric, predictions.reshape({-1}));
  } else {
    throw_shapes(metric, predictions, targets,
                 fmt::format("scores [N, {}, ...]{} and targets [N, ...]", classes,
                             top_k == 1 ? " or classes [N, ...] of an integer type" : ""));
  }
  check_range(metric, "target", batch.targets, batch.counted, classes);
  check_range(metric, "prediction", batch.predictions, batch.counted, classes);
  return batch;
}

at::Tensor safe_divide(const at::Tensor& numerator, const at::Tensor& denominator) {
  return at::where(denominator == 0, at::zeros_like(denominator), numerator / denominator);
}

}  // namespace

StatScores::StatScores(const char* metric, const ClassificationOptions& options)
    : metric_(metric),
      options_(options),
      targets_(
          add_sum("targets", {columns_of(metric, {options.task, options.classes, options.threshold, options.top_k})})),
      total_(add_sum("total", targets_.sizes())),
      true_positives_(add_sum("true_positives", prediction_shape())),
      predicted_(add_sum("predicted", prediction_shape())),
      logits_(add_sum("logits")) {}

std::vector<std::int64_t> StatScores::prediction_shape() const {
  const std::int64_t columns = targets_.size(0);
  return options_.task == Classification::multiclass ? std::vector{columns} : std::vector<std::int64_t>{2, columns};
}

void StatScores::update(const at::Tensor& predictions, const at::Tensor& targets) {
  const c10::NoGradGuard no_grad;
  if (options_.task == Classification::multiclass) {
    count_classes(predictions, targets);
  } else {
    count_labels(predictions, targets);
  }
}

void StatScores::count_classes(const at::Tensor& predictions, const at::Tensor& targets) {
  const ClassBatch batch =
      class_batch(metric_, predictions, targets, options_.classes, options_.top_k, options_.ignore_index);
  const at::Tensor counted = batch.counted.to(at::kDouble);
  const at::Tensor target = at::where(batch.counted, batch.targets, 0);
  const at::Tensor right = (batch.predictions == batch.targets).to(at::kDouble) * counted;
  true_positives_.scatter_add_(0, target, right);
  predicted_.scatter_add_(0, at::where(batch.counted, batch.predictions, 0), counted);
  targets_.scatter_add_(0, target, counted);
  total_ += counted.sum();
}

void StatScores::count_labels(const at::Tensor& predictions, const at::Tensor& targets) {
  const LabelBatch batch =
      label_batch(metric_, predictions, targets, targets_.size(0), options_.task == Classification::binary,
                  options_.threshold, options_.ignore_index);
  const at::Tensor counted = batch.counted.to(at::kDouble);
  const at::Tensor predicted = batch.predictions * counted;
  const at::Tensor positive = at::where(batch.counted, batch.targets, 0).to(at::kDouble);
  true_positives_ += (predicted * positive).sum(1);
  predicted_ += predicted.sum(1);
  logits_ += batch.logits;
  targets_ += positive.sum(0);
  total_ += counted.sum(0);
}

StatScores::Counts StatScores::counts() const {
  const bool is_multiclass = options_.task == Classification::multiclass;
  const at::Tensor right = is_multiclass ? true_positives_ : of_all_labels(true_positives_, logits_);
  const at::Tensor predicted = is_multiclass ? predicted_ : of_all_labels(predicted_, logits_);
  Counts counts{
      .tp = right, .fp = predicted - right, .tn = total_ - predicted - targets_ + right, .fn = targets_ - right};
  if (options_.task == Classification::binary || options_.average == Average::micro) {
    for (at::Tensor* count : {&counts.tp, &counts.fp, &counts.tn, &counts.fn}) {
      *count = count->sum();
    }
  }
  return counts;
}

at::Tensor StatScores::averaged(const at::Tensor& scores, const Counts& counts, const at::Tensor& occurs) const {
  if (scores.dim() == 0 || options_.average == Average::none) {
    return scores;
  }
  at::Tensor weights = options_.average == Average::weighted ? counts.tp + counts.fn : at::ones_like(scores);
  if (options_.average == Average::macro && options_.task == Classification::multiclass) {
    weights = occurs.to(at::kDouble);
  }
  return safe_divide((weights * scores).sum(), weights.sum());
}

namespace {

/// The classes that a macro average of torchmetrics counts.
at::Tensor occurring(const at::Tensor& tp, const at::Tensor& fp, const at::Tensor& fn, std::int64_t top_k) {
  return top_k == 1 ? tp + fp + fn != 0 : tp + fn != 0;
}

}  // namespace

at::Tensor Accuracy::compute() const {
  const auto [tp, fp, tn, fn] = counts();
  const at::Tensor scores =
      options().task == Classification::multiclass ? safe_divide(tp, tp + fn) : safe_divide(tp + tn, tp + tn + fp + fn);
  return averaged(scores, {tp, fp, tn, fn}, occurring(tp, fp, fn, options().top_k));
}

at::Tensor Precision::compute() const {
  const auto [tp, fp, tn, fn] = counts();
  return averaged(safe_divide(tp, tp + fp), {tp, fp, tn, fn}, occurring(tp, fp, fn, options().top_k));
}

at::Tensor Recall::compute() const {
  const auto [tp, fp, tn, fn] = counts();
  return averaged(safe_divide(tp, tp + fn), {tp, fp, tn, fn}, occurring(tp, fp, fn, options().top_k));
}

at::Tensor F1Score::compute() const {
  const auto [tp, fp, tn, fn] = counts();
  return averaged(safe_divide(2 * tp, 2 * tp + fn + fp), {tp, fp, tn, fn}, occurring(tp, fp, fn, 1));
}

namespace {

std::vector<std::int64_t> confusion_shape(const ConfusionMatrixOptions& options) {
  const std::int64_t columns = columns_of("ConfusionMatrix", {options.task, options.classes, options.threshold});
  if (options.task == Classification::multiclass) {
    return {columns, columns};
  }
  return options.task == Classification::binary ? std::vector<std::int64_t>{2, 2, 2}
                                                : std::vector<std::int64_t>{2, columns, 2, 2};
}

}  // namespace

ConfusionMatrix::ConfusionMatrix(const ConfusionMatrixOptions& options)
    : options_(options), counts_(add_sum("counts", confusion_shape(options))) {}

void ConfusionMatrix::update(const at::Tensor& predictions, const at::Tensor& targets) {
  const c10::NoGradGuard no_grad;
  const bool is_multiclass = options_.task == Classification::multiclass;
  const bool is_binary = options_.task == Classification::binary;
  const auto count = [&](const at::Tensor& cell, const at::Tensor& counted) {
    counts_.view({-1}).scatter_add_(0, at::where(counted, cell, 0).flatten(), counted.to(at::kDouble).flatten());
  };
  if (is_multiclass) {
    const std::int64_t classes = counts_.size(-1);
    const ClassBatch batch =
        class_batch("ConfusionMatrix", predictions, targets, classes, /*top_k=*/1, options_.ignore_index);
    count(batch.targets * classes + batch.predictions, batch.counted);
    return;
  }
  const std::int64_t labels = is_binary ? 1 : options_.classes;
  const LabelBatch batch = label_batch("ConfusionMatrix", predictions, targets, labels, is_binary, options_.threshold,
                                       options_.ignore_index);
  const at::Tensor matrix = at::arange(2 * labels, batch.targets.options()).view({2, 1, labels});  // of each label
  count(matrix * 4 + batch.targets * 2 + batch.predictions, batch.counted.expand_as(batch.predictions));
  logits_ += batch.logits;
}

at::Tensor ConfusionMatrix::compute() const {
  using Normalize = ConfusionMatrixOptions::Normalize;
  const at::Tensor counts = options_.task == Classification::multiclass ? counts_ : of_all_labels(counts_, logits_);
  switch (options_.normalize) {
    case Normalize::targets:
      return safe_divide(counts, counts.sum(-1, /*keepdim=*/true).expand_as(counts));
    case Normalize::predictions:
      return safe_divide(counts, counts.sum(-2, /*keepdim=*/true).expand_as(counts));
    case Normalize::all:
      return safe_divide(counts, counts.sum({-2, -1}, /*keepdim=*/true).expand_as(counts));
    default:
      return counts.clone();  // the next update changes the state in place
  }
}

namespace {

std::int64_t auroc_columns(const AUROCOptions& options) {
  if (options.task != Classification::binary && options.average == Average::micro) {
    throw ConfigError("AUROC: average is micro, expected macro, weighted or none");
  }
  return columns_of("AUROC", {options.task, options.classes});
}

/// From the ranks of the positives (Mann and Whitney, 1947); equal scores have their mean rank. [N] float64 and int64.
double area(const at::Tensor& scores, const at::Tensor& positive) {
  const auto [sorted, order] = scores.sort();
  const at::Tensor is_positive = positive.index_select(0, order).contiguous();
  const double* score = sorted.const_data_ptr<double>();
  const bool* flag = is_positive.const_data_ptr<bool>();
  const std::int64_t size = sorted.size(0);
  double ranks = 0;
  double positives = 0;
  for (std::int64_t begin = 0; begin < size;) {
    std::int64_t end = begin;
    double in_group = 0;
    for (; end < size && score[end] == score[begin]; ++end) {
      in_group += flag[end] ? 1 : 0;
    }
    end = std::max(end, begin + 1);  // NaN is equal to nothing
    ranks += in_group * 0.5 * static_cast<double>(begin + 1 + end);
    positives += in_group;
    begin = end;
  }
  const double negatives = static_cast<double>(size) - positives;
  if (positives == 0 || negatives == 0) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  return (ranks - positives * (positives + 1) / 2) / (positives * negatives);
}

at::Tensor empty_rows(at::ScalarType dtype, std::optional<std::int64_t> columns) {
  return columns ? at::empty({0, *columns}, dtype) : at::empty({0}, dtype);
}

/// Appends rows to a state with reduction cat. Its memory doubles when it is full, so the time of all updates together
/// is linear in their rows.
void append_rows(at::Tensor& state, const at::Tensor& rows) {
  if (rows.numel() == 0) {
    return;
  }
  std::vector<std::int64_t> shape = state.sizes().vec();
  const std::int64_t used = state.size(0);
  const std::int64_t all = used + rows.size(0);
  const auto row_bytes = static_cast<std::size_t>(rows.numel() / rows.size(0)) * state.itemsize();
  if (!state.is_contiguous() || state.storage_offset() != 0 ||
      state.storage().nbytes() < static_cast<std::size_t>(all) * row_bytes) {
    shape[0] = std::max(all, 2 * used);
    const at::Tensor grown = at::empty(shape, state.options());
    grown.narrow(0, 0, used).copy_(state);
    state = grown;
  }
  shape[0] = all;
  state = state.as_strided(shape, state.strides());
  state.narrow(0, used, rows.size(0)).copy_(rows);
}

}  // namespace

AUROC::AUROC(const AUROCOptions& options)
    : options_(options),
      scores_(add_state("scores", empty_rows(at::kDouble, auroc_columns(options)), StateReduction::cat)),
      targets_(
          add_state("targets",
                    empty_rows(at::kLong, options.task == Classification::multiclass ? std::nullopt
                                                                                     : std::optional(scores_.size(1))),
                    StateReduction::cat)) {}

void AUROC::update(const at::Tensor& predictions, const at::Tensor& targets) {
  const c10::NoGradGuard no_grad;
  const std::int64_t columns = scores_.size(1);
  const bool is_binary = options_.task == Classification::binary;
  at::Tensor rows;
  at::Tensor target;
  if (options_.task == Classification::multiclass) {
    if (predictions.dim() != targets.dim() + 1 || predictions.size(1) != columns) {
      throw_shapes("AUROC", predictions, targets, fmt::format("scores [N, {}, ...] and targets [N, ...]", columns));
    }
    rows = in_columns(predictions, columns, /*is_binary=*/false);
    target = class_ids("AUROC", targets.reshape({-1}));
  } else {
    check_label_shapes("AUROC", predictions, targets, columns, is_binary);
    rows = in_columns(predictions, columns, is_binary);
    target = class_ids("AUROC", in_columns(targets, columns, is_binary));
  }
  const at::Tensor counted = counted_targets(target, options_.ignore_index);
  check_range("AUROC", "target", target, counted, options_.task == Classification::multiclass ? columns : 2);
  append_rows(scores_, rows);
  append_rows(targets_, at::where(counted, target, -1));
}

at::Tensor AUROC::compute() const {
  const bool is_multiclass = options_.task == Classification::multiclass;
  at::Tensor scores = scores_.cpu();
  const at::Tensor targets = targets_.cpu();
  const std::int64_t columns = scores.size(1);
  // The area depends on the order of the scores only. A sigmoid keeps it, a softmax over the classes does not.
  if (is_multiclass && are_no_probabilities(scores).logical_and((targets >= 0).unsqueeze(1)).any().item<bool>()) {
    scores = scores.softmax(1);
  }
  at::Tensor areas = at::empty({columns}, at::kDouble);
  at::Tensor positives = at::empty({columns}, at::kDouble);
  for (std::int64_t column = 0; column < columns; ++column) {
    const at::Tensor target = is_multiclass ? targets : targets.select(1, column);
    const at::Tensor rows = (target >= 0).nonzero().flatten();
    const at::Tensor positive = target.index_select(0, rows) == (is_multiclass ? column : 1);
    areas[column] = area(scores.select(1, column).index_select(0, rows), positive);
    positives[column] = positive.sum();
  }
  if (options_.task == Classification::binary) {
    return areas[0];
  }
  if (options_.average == Average::none) {
    return areas;
  }
  const at::Tensor known = areas.isnan().logical_not().to(at::kDouble);
  const at::Tensor weights = options_.average == Average::weighted ? positives * known : known;
  return (areas.nan_to_num(0) * weights).sum() / weights.sum();
}

void Perplexity::update(const at::Tensor& logits, const at::Tensor& targets) {
  const c10::NoGradGuard no_grad;
  if (logits.dim() != targets.dim() + 1 ||
      logits.sizes().slice(0, static_cast<std::size_t>(targets.dim())) != targets.sizes()) {
    throw_shapes("Perplexity", logits, targets, "logits [..., V] and targets [...]");
  }
  const at::Tensor target = class_ids("Perplexity", targets.reshape({-1}));
  const at::Tensor counted = counted_targets(target, ignore_index_);
  check_range("Perplexity", "target", target, counted, logits.size(-1));
  const auto dtype = logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;  // large: tokens x V
  const at::Tensor rows = logits.reshape({-1, logits.size(-1)}).log_softmax(1, dtype);
  const at::Tensor of_targets = rows.gather(1, at::where(counted, target, 0).unsqueeze(1)).squeeze(1);
  nats_ -= at::where(counted, of_targets, 0.0).sum(at::kDouble);
  tokens_ += counted.sum();
}

at::Tensor Perplexity::compute() const { return (nats_ / tokens_).exp(); }

}  // namespace lockstep::metrics
