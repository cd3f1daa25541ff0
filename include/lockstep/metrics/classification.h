// lockstep/metrics/classification.h
//
// Metrics of classifiers, with the names and the definitions of torchmetrics.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <lockstep/metrics/metric.h>

namespace [[gnu::visibility("default")]] lockstep {
namespace metrics {

/// What predictions and targets are.
enum class Classification {
  binary,      ///< predictions [...]: labels 0 and 1, probabilities or logits; targets [...]: 0 or 1
  multiclass,  ///< predictions [N, C, ...]: scores, or [N, ...]: classes; targets [N, ...]: classes
  multilabel,  ///< predictions [N, L, ...] as for binary; targets [N, L, ...]: 0 or 1
};

/// How the values of several classes become one.
enum class Average {
  micro,     ///< over all samples
  macro,     ///< the mean over the classes that occur
  weighted,  ///< the mean over the classes, weighted by the number of their targets
  none,      ///< one value per class
};

/// Options of the metrics that count right and wrong classes, with the names of torchmetrics.
struct ClassificationOptions {
  Classification task = Classification::multiclass;
  std::int64_t classes = 0;  ///< or labels; not needed for binary
  Average average = Average::micro;
  /// Multiclass scores: the prediction is right if its target is among the `top_k` largest, else it is the largest.
  std::int64_t top_k = 1;
  double threshold = 0.5;                      ///< binary and multilabel: a larger probability is a 1
  std::optional<std::int64_t> ignore_index{};  ///< targets with this value are not counted
};

/// Counts for each class from which the metrics below are computed. Predictions of floating type are logits if one of
/// all updates on all ranks is outside of 0 to 1, else probabilities (binary, multilabel). A quotient 0 / 0 is 0.
class StatScores : public Metric {
 public:
  /// Throws: Error (shapes that do not fit; on the CPU: a class outside of 0 to classes - 1).
  void update(const at::Tensor& predictions, const at::Tensor& targets);

 protected:
  /// `metric`: its name in messages, a literal. Throws: ConfigError.
  StatScores(const char* metric, const ClassificationOptions& options);

  struct Counts {
    at::Tensor tp{};  ///< true positives, [classes] or 0-dim
    at::Tensor fp{};
    at::Tensor tn{};
    at::Tensor fn{};
  };
  /// Of all classes together with Average::micro and for binary.
  Counts counts() const;
  /// The average of a score per class. `occurs`: the classes that count in a macro average.
  at::Tensor averaged(const at::Tensor& scores, const Counts& counts, const at::Tensor& occurs) const;
  const ClassificationOptions& options() const noexcept { return options_; }

 private:
  void count_classes(const at::Tensor& predictions, const at::Tensor& targets);
  void count_labels(const at::Tensor& predictions, const at::Tensor& targets);
  std::vector<std::int64_t> prediction_shape() const;

  const char* metric_;
  ClassificationOptions options_;
  at::Tensor& targets_;  // [columns]
  at::Tensor& total_;
  at::Tensor& true_positives_;  // [classes]; binary and multilabel [2, columns]: of probabilities, and of logits
  at::Tensor& predicted_;
  at::Tensor& logits_;  // predictions that can only be logits
};

/// Share of the predictions that are right.
class Accuracy final : public StatScores {
 public:
  explicit Accuracy(const ClassificationOptions& options) : StatScores("Accuracy", options) {}
  at::Tensor compute() const override;
};

/// Share of the predicted positives that are right.
class Precision final : public StatScores {
 public:
  explicit Precision(const ClassificationOptions& options) : StatScores("Precision", options) {}
  at::Tensor compute() const override;
};

/// Share of the positive targets that were predicted.
class Recall final : public StatScores {
 public:
  explicit Recall(const ClassificationOptions& options) : StatScores("Recall", options) {}
  at::Tensor compute() const override;
};

/// Harmonic mean of precision and recall.
class F1Score final : public StatScores {
 public:
  explicit F1Score(const ClassificationOptions& options) : StatScores("F1Score", options) {}
  at::Tensor compute() const override;
};

/// Options of ConfusionMatrix; `normalize`: divide by the sum over that dimension, or over all.
struct ConfusionMatrixOptions {
  enum class Normalize { none, targets, predictions, all };
  Classification task = Classification::multiclass;
  std::int64_t classes = 0;  ///< or labels; not needed for binary
  Normalize normalize = Normalize::none;
  double threshold = 0.5;
  std::optional<std::int64_t> ignore_index{};
};

/// Value: [classes, classes], rows are targets; binary [2, 2]; multilabel [labels, 2, 2].
class ConfusionMatrix final : public Metric {
 public:
  /// Throws: ConfigError.
  explicit ConfusionMatrix(const ConfusionMatrixOptions& options);
  void update(const at::Tensor& predictions, const at::Tensor& targets);  ///< see StatScores
  at::Tensor compute() const override;

 private:
  ConfusionMatrixOptions options_;
  at::Tensor& counts_;  // binary and multilabel [2, ...]: of probabilities, and of logits
  at::Tensor& logits_ = add_sum("logits");
};

/// Options of AUROC.
struct AUROCOptions {
  Classification task = Classification::binary;
  std::int64_t classes = 0;          ///< or labels; not needed for binary
  Average average = Average::macro;  ///< multiclass (one against the rest) and multilabel; not micro
  std::optional<std::int64_t> ignore_index{};
};

/// Area under the ROC curve, exact: the state is all scores and targets, 8 bytes each. NaN for a class without positive
/// or without negative targets, which averages leave out. Multiclass scores get a softmax if one of all updates on all
/// ranks is outside of 0 to 1.
class AUROC final : public Metric {
 public:
  /// Throws: ConfigError.
  explicit AUROC(const AUROCOptions& options = {});
  void update(const at::Tensor& predictions, const at::Tensor& targets);  ///< scores, not classes
  at::Tensor compute() const override;

 private:
  AUROCOptions options_;
  at::Tensor& scores_;   // [N, columns], as given to update()
  at::Tensor& targets_;  // [N], multilabel [N, columns]; -1: ignored
};

/// exp of the mean cross-entropy per token.
class Perplexity final : public Metric {
 public:
  explicit Perplexity(std::optional<std::int64_t> ignore_index = {}) : ignore_index_(ignore_index) {}
  /// `logits`: [..., V]. `targets`: [...], integers.
  void update(const at::Tensor& logits, const at::Tensor& targets);
  at::Tensor compute() const override;

 private:
  std::optional<std::int64_t> ignore_index_;
  at::Tensor& nats_ = add_sum("nats");
  at::Tensor& tokens_ = add_sum("tokens");
};

}  // namespace metrics
}  // namespace lockstep
