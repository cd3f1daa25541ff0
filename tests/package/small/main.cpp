#include <ATen/core/Tensor.h>

#include <lockstep/run.h>
#include <lockstep/version.h>

int main(int argc, char** argv) {
  const lockstep::TrainConfig defaults{.checkpoint = {.enabled = false}, .report = {.jsonl = false, .csv = false}};
  return lockstep::run(defaults, argc, argv, [](lockstep::Session& session) {
    if (!at::Tensor().defined()) {
      session.print("small program ran with lockstep " LOCKSTEP_VERSION);
    }
  });
}
