// The command line of OneTrainer's multi-GPU script, for those who are used to it. Its six flags become settings of
// lockstep; every other word is passed on, so that all flags of lockstep work as well.
//
//   ./10_train_multi_gpu --config-path 10_train_multi_gpu.json --num-gpus 2 --spawn
//   ./10_train_multi_gpu --config-path 10_train_multi_gpu.json --num-gpus 2 --port 12355    with torchrun from PATH
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include <unistd.h>

#include <torch/torch.h>

#include <lockstep/lockstep.h>

struct CommandLine {
  std::vector<std::string> words{};  // for lockstep::run
  std::string gpus = "gpu";          // for torchrun: all of this machine
  std::string port = "12355";
  bool spawn = false;
};

CommandLine translate(const std::vector<std::string>& given) {
  CommandLine line;
  for (std::size_t i = 0; i < given.size(); ++i) {
    const std::string& flag = given[i];
    const auto value = [&] { return i + 1 < given.size() ? given[++i] : std::string(); };
    if (flag == "--config-path") {
      line.words.insert(line.words.end(), {"--config", value()});
    } else if (flag == "--num-gpus") {  // 0: all. OneTrainer takes fewer GPUs if there are fewer; lockstep refuses
      if (const std::string number = value(); number != "0") {
        line.words.insert(line.words.end(), {"--nprocs", number});
        line.gpus = number;
      }
    } else if (flag == "--distributed-backend") {
      line.words.insert(line.words.end(), {"--backend", value()});
    } else if (flag == "--port") {  // ranks that this program starts itself need none
      line.port = value();
    } else if (flag == "--spawn") {
      line.spawn = true;
    } else if (flag != "--distributed-data-loading") {  // each rank always gets its own part of the data
      line.words.push_back(flag);
    }
  }
  return line;
}

/// Replaces this process by torchrun, which starts the program once per rank.
void start_torchrun(const CommandLine& line) {
  std::vector<std::string> words{"torchrun",
                                 "--no-python",
                                 "--nproc-per-node",
                                 line.gpus,
                                 "--master-port",
                                 line.port,
                                 std::filesystem::read_symlink("/proc/self/exe").string()};
  words.insert(words.end(), line.words.begin() + 1, line.words.end());
  std::vector<char*> argv;
  for (std::string& word : words) {
    argv.push_back(word.data());
  }
  argv.push_back(nullptr);
  execvp(argv[0], argv.data());
  std::fprintf(stderr, "error: cannot start torchrun: %s\n  hint: use --spawn\n", std::strerror(errno));
  std::exit(static_cast<int>(lockstep::ExitCode::not_found));
}

int main(int argc, char** argv) {
  CommandLine line = translate({argv, argv + argc});
  if (!line.spawn && std::getenv("LOCAL_RANK") == nullptr) {  // LOCAL_RANK: this process is a rank already
    start_torchrun(line);
  }
  std::vector<char*> words;
  for (std::string& word : line.words) {
    words.push_back(word.data());
  }
  return lockstep::run({}, static_cast<int>(words.size()), words.data(), [](lockstep::Session& session) {
    const auto x = torch::rand({2048, 20});
    auto task = lockstep::make_task(
        torch::nn::Linear(20, 1), [](const auto& y, const auto& target) { return torch::mse_loss(y, target); },
        lockstep::adamw({.lr = 1e-2}));
    lockstep::DataLoader train(lockstep::tensor_dataset(x, x.sum(1, true)), session.plan.loader, session.world);
    lockstep::Trainer(session).fit(*task, train);
  });
}
