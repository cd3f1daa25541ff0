// The training of 06_char_gpt.cpp without the Trainer: World, Strategy, DataLoader and CheckpointStore in a
// hand-written loop. It ends with bitwise the same weights, and continues with any number of ranks.
#include <lockstep/checkpoint/checkpoint_store.h>
#include <lockstep/checkpoint/rng_state.h>

#include "char_gpt.h"

int main(int argc, char** argv) {
  std::string file;
  lockstep::Flags flags;
  flags.add("text", &file, "file to learn (default: /usr/share/common-licenses/*)", lockstep::TextKind::existing_path);

  lockstep::TrainConfig defaults = char_gpt::defaults();
  defaults.validate = {.every_epochs = 0};  // so that the table at the start shows what this loop does
  defaults.checkpoint.every_epochs = 0;
  return lockstep::run(defaults, flags, argc, argv, [&](lockstep::Session& session) {
    lockstep::World& world = session.world;
    const lockstep::TrainConfig& config = session.plan.config;
    if (config.max_steps == 0 || config.max_epochs > 0) {
      throw lockstep::ConfigError("this loop ends at --max_steps and counts no epochs",
                                  "set --max_steps, and leave --max_epochs at 0");
    }
    const auto text = char_gpt::load_text(file);
    char_gpt::Gpt model(static_cast<std::int64_t>(text.alphabet.size()), char_gpt::kDropout);
    lockstep::DataLoader data(std::make_shared<char_gpt::Windows>(text.train, 1), session.plan.loader, world);

    model->to(world.device());
    const auto strategy = lockstep::make_strategy(session.plan, world);
    const lockstep::OptimizerSpec spec(lockstep::adamw({.lr = char_gpt::kLearningRate, .no_decay_vectors = true}));
    strategy->prepare(*model, {&spec, 1});
    auto& optimizer = strategy->optimizer();
    lockstep::CheckpointStore store(lockstep::run_directory(config) + "/checkpoints", config.checkpoint, world);
    lockstep::seed_rng({.seed = config.seed, .rank = world.rank()}, world.device());

    std::int64_t step = 0;
    std::int64_t saved_step = 0;
    const auto save = [&] {
      // Keep a number that is not whole as a tensor, which is exact: a group {"own", {{"energy",
      // torch::tensor(energy)}}}.
      store.save(step,
                 {.tensors = {{"model", lockstep::module_tensors(*model)}, {"optimizer", strategy->optimizer_state()}},
                  .values = lockstep::position_values(data.position()),
                  .per_rank = lockstep::rng_state(world.device())});
      saved_step = step;
    };
    if (const auto stored = store.load_latest()) {
      const lockstep::CheckpointContents& contents = stored->contents;
      lockstep::load_module(*model, contents.tensors.at("model"));
      strategy->load_optimizer_state(contents.tensors.at("optimizer"));
      data.seek(lockstep::position_of(contents.values));
      step = saved_step = stored->step;
      lockstep::restore_rng(contents.per_rank, {.seed = config.seed, .rank = world.rank(), .step = step},
                            world.device());
    }

    bool stopped = false;
    while (step < config.max_steps && !stopped) {
      const lockstep::StepBatches& batches = *data.next();
      strategy->begin_step(step, {.stop = session.control.stop_requested() != lockstep::StopKind::none});
      optimizer.zero_grad();
      for (const auto& batch : batches.micro) {
        const bool is_last = &batch == &batches.micro.back();
        optimizer.begin_forward(is_last ? lockstep::Gradients::reduce : lockstep::Gradients::accumulate);
        if (batch.samples == 0) {
          optimizer.backward_nothing();  // other ranks have samples in this micro-batch
          continue;
        }
        const auto loss = char_gpt::loss(model, batch);
        optimizer.backward(
            loss, static_cast<double>(batch.samples * world.size()) / static_cast<double>(batches.global_samples));
      }
      optimizer.finish();
      if (config.optim.max_grad_norm > 0) {
        torch::NoGradGuard no_grad;
        optimizer.scale_grads((config.optim.max_grad_norm / (optimizer.grad_norm() + 1e-6)).clamp_max(1.0));
      }
      optimizer.set_lr(
          {.step = step, .total_steps = config.max_steps, .steps_per_epoch = data.steps_per_epoch().value_or(0)});
      optimizer.step();
      stopped = strategy->agreed().stop;
      ++step;
      if (config.checkpoint.every_steps > 0 && step % config.checkpoint.every_steps == 0) {
        save();
      }
    }
    if (step != saved_step) {
      save();
    }
    if (stopped) {  // perhaps by a signal to one rank: all end with its exit code
      const double kind =
          world.all_reduce(static_cast<double>(session.control.stop_requested()), lockstep::Reduce::max);
      session.control.set_agreed(static_cast<lockstep::StopKind>(kind));
    }
    session.print("step " + std::to_string(step) + " is saved in " + lockstep::run_directory(config));
  });
}
