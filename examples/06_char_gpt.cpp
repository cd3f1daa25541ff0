// A small GPT learns English from the licence texts on this machine, or from --text FILE, with one rank per device.
// Stop it with Ctrl-C and start it again: it resumes.
#include <fmt/format.h>  // link fmt::fmt-header-only

#include "char_gpt.h"

struct CharModel final : lockstep::Task {
  explicit CharModel(char_gpt::Gpt model) : gpt(std::move(model)) {}
  torch::nn::Module& module() override { return *gpt; }
  std::vector<lockstep::OptimizerSpec> optimizers() override {
    return {lockstep::adamw({.lr = char_gpt::kLearningRate, .no_decay_vectors = true})};
  }
  lockstep::StepOutput training_step(const lockstep::Batch& batch) override { return char_gpt::loss(gpt, batch); }

  char_gpt::Gpt gpt;
};

int main(int argc, char** argv) {
  std::string file;
  std::int64_t length = 600;
  lockstep::Flags flags;
  flags.add("text", &file, "file to learn (default: /usr/share/common-licenses/*)", lockstep::TextKind::existing_path);
  flags.add("sample", &length, "number of characters to generate at the end").may_change("sample");

  return lockstep::run(char_gpt::defaults(), flags, argc, argv, [&](lockstep::Session& session) {
    const auto text = char_gpt::load_text(file);
    CharModel task(char_gpt::Gpt(static_cast<std::int64_t>(text.alphabet.size()), char_gpt::kDropout));
    lockstep::DataLoader train(std::make_shared<char_gpt::Windows>(text.train, 1), session.plan.loader, session.world);
    lockstep::DataLoader validation(std::make_shared<char_gpt::Windows>(text.validation, char_gpt::kContext),
                                    session.plan.eval_loader, session.world);

    const auto result = lockstep::Trainer(session).fit(task, train, &validation);

    if (result.stop <= lockstep::StopKind::program && session.world.is_main() && length > 0) {
      const std::string sample = char_gpt::sample(task.gpt, text.alphabet, length, session.world.device());
      session.print(fmt::format("\n{}\n\n{:.0f} % of the words in the sample occur in the text", sample,
                                100 * char_gpt::known_words(sample, text.all)));
    }
  });
}
