#include "supervise/rank_output.h"

#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::vector<std::string> split_lines(const std::vector<std::string>& pieces) {
  LineSplitter splitter;
  std::vector<std::string> lines;
  const auto add = [&](std::string_view line) { lines.emplace_back(line); };
  for (const std::string& piece : pieces) {
    splitter.feed(piece, add);
  }
  splitter.finish(add);
  return lines;
}

TEST(LineSplitter, SplitsWhereverTheBytesAreCut) {
  const std::string text = "one\ntwo\r\n\nfour\r\r50%\r100%\nlast";
  const std::vector<std::string> expected{"one", "two", "", "four", "50%", "100%", "last"};
  EXPECT_EQ(split_lines({text}), expected);
  for (std::size_t cut = 1; cut < text.size(); ++cut) {
    EXPECT_EQ(split_lines({text.substr(0, cut), text.substr(cut)}), expected) << "cut at " << cut;
  }
}

TEST(LineSplitter, CutsAnEndlessLine) {
  const std::string endless(2 * LineSplitter::kMaxLine + 10, 'x');
  const auto lines = split_lines({endless.substr(0, 1000), endless.substr(1000) + "\nnext\n"});
  ASSERT_EQ(lines.size(), 4U);
  EXPECT_EQ(lines[0].size(), LineSplitter::kMaxLine);
  EXPECT_EQ(lines[1].size(), LineSplitter::kMaxLine);
  EXPECT_EQ(lines[2], std::string(10, 'x'));
  EXPECT_EQ(lines[3], "next");
}

TEST(LineSplitter, SaysNothingAboutNothing) { EXPECT_THAT(split_lines({"", "a\n", ""}), ElementsAre("a")); }

struct Printed {
  std::vector<std::string> out;
  std::vector<std::string> err;
  RankOutput::Sink sink() {
    return [this](OutputStream stream, std::string text) {
      (stream == OutputStream::out ? out : err).push_back(std::move(text));
    };
  }
};

TEST(RankOutput, PutsTheRankInFrontUnlessItIsThere) {
  Printed printed;
  RankOutput output(3, 4, printed.sink());
  output.feed(OutputStream::out, "plain\n[rank3]: has it\n[rank3]:[W1121 c10d]\n[rank0]: forged\n\n");
  EXPECT_THAT(printed.out, ElementsAre("[rank3]: plain", "[rank3]: has it", "[rank3]:[W1121 c10d]",
                                       "[rank3]: [rank0]: forged", "[rank3]: "));
  EXPECT_THAT(printed.err, IsEmpty());
}

TEST(RankOutput, LeavesASingleRankAlone) {
  Printed printed;
  RankOutput output(0, 1, printed.sink());
  output.feed(OutputStream::err, "plain\n");
  EXPECT_THAT(printed.err, ElementsAre("plain"));
}

TEST(RankOutput, RemovesWhatDrivesATerminal) {
  Printed printed;
  RankOutput output(0, 2, printed.sink());
  output.feed(OutputStream::out,
              "\x1b[31mred\x1b[0m\tand\a\b \x1b]0;title\x07"
              "done\n\x1b[31m[rank1]: forged\n");
  EXPECT_THAT(printed.out, ElementsAre("[rank0]: red\tand done", "[rank0]: [rank1]: forged"));
}

TEST(RankOutput, KeepsStreamsApartAndFlushesTheLastLine) {
  Printed printed;
  RankOutput output(0, 2, printed.sink());
  output.feed(OutputStream::out, "o");
  output.feed(OutputStream::err, "e");
  output.feed(OutputStream::out, "ut");
  EXPECT_THAT(printed.out, IsEmpty());
  output.finish(OutputStream::out);
  output.finish(OutputStream::err);
  output.finish(OutputStream::err);
  EXPECT_THAT(printed.out, ElementsAre("[rank0]: out"));
  EXPECT_THAT(printed.err, ElementsAre("[rank0]: e"));
}

TEST(RankOutput, RemembersTheLastErrors) {
  Printed printed;
  RankOutput output(0, 1, printed.sink());
  output.feed(OutputStream::out, "not an error\n");
  for (int i = 0; i < 50; ++i) {
    output.feed(OutputStream::err, std::to_string(i) + "\n");
  }
  ASSERT_EQ(output.error_tail().size(), RankOutput::kTailLines);
  EXPECT_EQ(output.error_tail().front(), "30");
  EXPECT_EQ(output.error_tail().back(), "49");
}

}  // namespace
}  // namespace lockstep
