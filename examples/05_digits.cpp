// A small convolutional network learns handwritten digits: augmentation, validation with an exact accuracy, the best
// checkpoint, and a test on images that no decision of the training has used.
//
//   python3 05_digits.py digits        writes the 1,797 digits of scikit-learn as IDX files into the folder digits
//   ./05_digits digits                 99 % of the test images are right after 30 epochs
//   ./05_digits mnist --max_epochs 5   or a folder with the four files of MNIST
#include <fmt/format.h>  // link fmt::fmt-header-only

#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include <lockstep/checkpoint/checkpoint_store.h>
#include <lockstep/checkpoint/module_state.h>
#include <lockstep/data/file_datasets.h>
#include <lockstep/data/split.h>
#include <lockstep/data/transforms.h>
#include <lockstep/lockstep.h>
#include <lockstep/metrics/classification.h>

namespace nn = torch::nn;

/// For images of any size: the last pooling makes 4 x 4 values of each channel.
nn::Sequential make_net() {
  return nn::Sequential(nn::Conv2d(nn::Conv2dOptions(1, 32, 3).padding(1)), nn::ReLU(),
                        nn::Conv2d(nn::Conv2dOptions(32, 64, 3).padding(1)), nn::ReLU(),
                        nn::AdaptiveMaxPool2d(nn::AdaptiveMaxPool2dOptions(4)), nn::Flatten(), nn::Dropout(0.25),
                        nn::Linear(64 * 16, 128), nn::ReLU(), nn::Linear(128, 10));
}

/// Moves an image [1, H, W] by at most one pixel in each direction. All random numbers come from `seed`, so they do not
/// depend on the number of ranks and workers.
lockstep::Batch move_a_little(lockstep::Batch sample, std::uint64_t seed) {
  at::Generator random = at::detail::createCPUGenerator(seed);
  const auto corner = torch::randint(0, 3, {2}, random);
  const auto image = torch::constant_pad_nd(sample.input, {1, 1, 1, 1});
  sample.input = image.narrow(1, corner[0].item<std::int64_t>(), sample.input.size(1))
                     .narrow(2, corner[1].item<std::int64_t>(), sample.input.size(2));
  return sample;
}

struct Digits final : lockstep::Task {
  nn::Module& module() override { return *net; }
  std::vector<lockstep::OptimizerSpec> optimizers() override {
    return {{lockstep::adamw({.lr = 2e-3}), "warmup:5%+cosine"}};
  }
  lockstep::StepOutput training_step(const lockstep::Batch& batch) override {
    return torch::cross_entropy_loss(net->forward(batch.input), batch.target);
  }
  lockstep::StepOutput validation_step(const lockstep::Batch& batch) override {  // also for Trainer::test
    const auto logits = net->forward(batch.input);
    accuracy.update(logits, batch.target);
    return torch::cross_entropy_loss(logits, batch.target);
  }
  std::vector<lockstep::metrics::NamedMetric> metrics() override { return {{"accuracy", accuracy}}; }

  nn::Sequential net = make_net();
  lockstep::metrics::Accuracy accuracy{{.classes = 10}};
};

int main(int argc, char** argv) {
  std::string folder = "digits";
  lockstep::Flags flags;
  flags.positional("folder", &folder, "folder with the IDX files of images and labels",
                   lockstep::TextKind::existing_path);

  const lockstep::TrainConfig defaults{
      .max_epochs = 30,
      .global_batch_size = 64,
      .checkpoint = {.monitor = "val_loss"},  // many epochs have the same accuracy
  };
  return lockstep::run(defaults, flags, argc, argv, [&](lockstep::Session& session) {
    const auto images = lockstep::mnist_dataset(folder, lockstep::DatasetPart::train);
    const auto split =
        lockstep::split_dataset(images, lockstep::run_directory(session.plan.config) + "/split.json", session.world);
    lockstep::DataLoader train(lockstep::map(split.train, move_a_little), session.plan.loader, session.world);
    lockstep::DataLoader validation(split.validation, session.plan.eval_loader, session.world);
    lockstep::DataLoader test(lockstep::mnist_dataset(folder, lockstep::DatasetPart::test), session.plan.eval_loader,
                              session.world);

    Digits task;
    lockstep::Trainer trainer(session);
    const lockstep::FitResult result = trainer.fit(task, train, &validation);
    if (result.best) {  // test with the best weights, not with the last ones
      const auto best = lockstep::load_checkpoint(result.best->path, session.world);
      lockstep::load_module(task.module(), best.tensors.at("model"));
    }
    for (const auto& [name, value] : trainer.test(task, test)) {
      if (name == "accuracy") {
        session.print(fmt::format("{:.1f} % of the test images are right", 100 * value));
      }
    }
  });
}
