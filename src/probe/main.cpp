// lockstep-probe: the ranks of `lockstep test`. Like a program of a user it is linked to the library and calls run().
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <unistd.h>

#include <lockstep/lockstep.h>

#include "probe/collectives.h"
#include "probe/devices.h"
#include "probe/results.h"
#include "probe/trainings.h"

namespace lockstep {
namespace {

void exchange(Session& session, Results& results) {
  check_collectives(session.world, results);
  check_gradients(session, results);
  check_training(session, results);
  measure_step(session, results);
}

void save(Session& session, Results& results) {
  measure_threads(session, results);
  measure_workers(session, results);
  save_half(session, results);
}

constexpr std::pair<std::string_view, void (*)(Session&, Results&)> kParts[] = {
    {"devices", check_devices}, {"exchange", exchange}, {"save", save}, {"resume", resume_half}, {"lose", lose_a_rank},
};

void try_part(std::string_view part, Session& session, const std::vector<std::string>& faults) {
  for (const auto& [name, work] : kParts) {
    if (name == part) {
      Results results(session.world, faults);
      Json pids = Json::array();
      for (const std::string& pid : session.world.gather(std::to_string(getpid()))) {
        pids.push_back(std::stoi(pid));
      }
      results.measured("met", {{"pids", std::move(pids)}});
      work(session, results);
      return;
    }
  }
  throw ConfigError("--part: expected devices, exchange, save, resume or lose", "start lockstep test instead");
}

std::vector<std::string> words_of(const std::string& list) {
  std::vector<std::string> words;
  std::istringstream in(list);
  for (std::string word; std::getline(in, word, ',');) {
    words.push_back(word);
  }
  return words;
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  std::string part;
  std::string faults;
  lockstep::Flags flags;
  flags.add("part", &part, "what to try")
      .add("faults", &faults, "for tests: checks, separated by commas, whose data the last rank falsifies");
  const lockstep::TrainConfig defaults{.max_epochs = 0,
                                       .max_steps = 1,
                                       .batch_size = 8,
                                       .report = {.every_steps = 1'000'000, .jsonl = false, .csv = false}};
  return lockstep::run(defaults, flags, argc, argv, [&](lockstep::Session& session) {
    lockstep::try_part(part, session, lockstep::words_of(faults));
  });
}
