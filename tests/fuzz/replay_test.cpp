// The corpus and a few thousand mutations of it, the same at every run: what the fuzzers do, without clang and in a
// second.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include "fuzz/target.h"

namespace lockstep {
namespace {

std::vector<std::string> corpus(const std::string& name) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::path(LOCKSTEP_FUZZ_CORPUS) / name)) {
    files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  std::vector<std::string> texts;
  for (const auto& file : files) {
    std::ifstream in(file, std::ios::binary);
    texts.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  return texts;
}

/// Removes, doubles, overwrites or moves in pieces of other texts.
std::string mutated(std::string text, const std::vector<std::string>& texts, std::mt19937& random) {
  const auto below = [&](std::size_t limit) { return limit == 0 ? 0 : random() % limit; };
  for (std::size_t changes = 1 + below(4); changes > 0; --changes) {
    const std::size_t at = below(text.size() + 1);
    const std::size_t length = below(std::min<std::size_t>(text.size() - at, 8) + 1);
    switch (below(4)) {
      case 0:
        text.erase(at, length);
        break;
      case 1:
        text.insert(at, text.substr(at, length));
        break;
      case 2:
        text.replace(at, length, 1, static_cast<char>(random() % 256));
        break;
      default: {
        const std::string& other = texts[below(texts.size())];
        const std::size_t from = below(other.size() + 1);
        text.insert(at, other.substr(from, below(32)));
      }
    }
  }
  return text;
}

void replay(const fuzz::Target& target) {
  const std::vector<std::string> texts = corpus(target.name);
  ASSERT_FALSE(texts.empty()) << target.name;
  for (const std::string& text : texts) {
    target.run(text);
  }
  std::mt19937 random(1);
  for (int i = 0; i < 1000; ++i) {
    target.run(mutated(texts[random() % texts.size()], texts, random));
  }
}

class FuzzReplay : public testing::TestWithParam<fuzz::Target> {};

TEST_P(FuzzReplay, KeepsItsPromises) { replay(GetParam()); }

#ifndef __SANITIZE_ADDRESS__  // which maps terabytes for itself
/// From now on this process gets `more` bytes of memory.
void limit_memory(std::size_t more) {
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlim_t most = pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE)) + more;
  const rlimit limit{.rlim_cur = most, .rlim_max = most};
  setrlimit(RLIMIT_AS, &limit);
}

// Inputs of kilobytes that claim to be of any size.
TEST_P(FuzzReplay, TakesNoMemoryThatTheInputOnlyClaims) {
  const auto within_little = [] {
    limit_memory(std::size_t{32} << 20);
    replay(GetParam());
    std::_Exit(0);
  };
  EXPECT_EXIT(within_little(), testing::ExitedWithCode(0), "");
}

TEST(FuzzReplayDeathTest, SeesAParserThatBelievesItsInput) {  // the control
  const auto believing = []() noexcept {
    limit_memory(std::size_t{32} << 20);
    const volatile std::size_t claimed = std::size_t{64} << 20;
    const std::vector<char> bytes(claimed);
    std::_Exit(bytes[claimed - 1]);
  };
  EXPECT_DEATH(believing(), "bad_alloc");
}
#endif

INSTANTIATE_TEST_SUITE_P(Parsers, FuzzReplay, testing::ValuesIn(fuzz::targets()),
                         [](const auto& each) { return std::string(each.param.name); });

// The control: a target that breaks its promise is noticed.
TEST(FuzzReplayDeathTest, SeesABrokenPromise) {
  EXPECT_DEATH(fuzz::promise(false, "nothing", "n[1-2]"), "broken promise: nothing; input: n\\[1-2\\]");
}

}  // namespace
}  // namespace lockstep
