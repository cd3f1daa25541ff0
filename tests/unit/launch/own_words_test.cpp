#include "launch/own_words.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep {
namespace {

using testing::ElementsAre;
using namespace std::string_view_literals;
using Words = std::vector<std::string>;

TEST(OwnWords, AreThoseOfMainAlsoIfTheProgramRemovedSome) {
  EXPECT_THAT(words_of("./train\0-i\0case7.nml\0--nprocs\0002\0"sv, "train", {"./train", "--nprocs", "2"}),
              ElementsAre("./train", "-i", "case7.nml", "--nprocs", "2"));
  EXPECT_THAT(words_of("./train\0--run_name\0\0"sv, "train", {"./train"}), ElementsAre("./train", "--run_name", ""));
}

TEST(OwnWords, HoldWhatStartedTheProgram) {
  EXPECT_THAT(words_of("/lib64/ld-linux-x86-64.so.2\0./train\0-i\0x\0"sv, "ld-linux-x86-64.so.2", {"./train"}),
              ElementsAre("/lib64/ld-linux-x86-64.so.2", "./train", "-i", "x"));
  EXPECT_THAT(words_of("python3\0train.py\0-i\0x\0"sv, "python3.11", {"train.py"}),
              ElementsAre("python3", "train.py", "-i", "x"));
}

TEST(OwnWords, AreKnownByTheNameOfTheProgram) {
  EXPECT_THAT(words_of("bin/train\0-i\0x\0"sv, "train", {"my training"}), ElementsAre("bin/train", "-i", "x"));
  EXPECT_THAT(words_of("bin/link\0-i\0x\0"sv, "train", {"link"}), ElementsAre("bin/link", "-i", "x"));
}

TEST(OwnWords, AreTheGivenOnesWithoutACommandLine) {
  const Words given{"./train", "--nprocs", "2"};
  EXPECT_EQ(words_of("", "train", given), given);
  EXPECT_EQ(words_of("train: step 4", "train", given), given);
  EXPECT_EQ(words_of("train: step 4\0\0\0\0"sv, "train", given), given);
}

TEST(OwnWords, AreFoundForAProgramThatGivesNone) {
  EXPECT_EQ(words_of("./train\0--nprocs\0002\0"sv, "train", {}), (Words{"./train", "--nprocs", "2"}));
}

TEST(OwnWords, AreThoseOfThisProcess) {
  const Words all = testing::internal::GetArgvs();
  ASSERT_FALSE(all.empty());
  EXPECT_EQ(own_words({all.front()}), all) << "also those that the program removed";
}

}  // namespace
}  // namespace lockstep
