// Each rule is shown something bad and must say so, and something good that looks like it.
#include "structure/source_rules.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::structure {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(SourceText, BlanksCommentsAndKeepsLines) {
  EXPECT_EQ(without_comments("a // b\nc /* d\ne */ f", true), "a     \nc     \n     f");
  EXPECT_EQ(without_comments(R"(x = "// no comment";)", true), R"(x = "// no comment";)");
  EXPECT_EQ(without_comments(R"(x = "a\"b"; // c)", false), R"(x = "    ";     )");
  EXPECT_EQ(without_comments("n = 1'000'000; // many", false), "n = 1'000'000;        ");
  EXPECT_EQ(without_comments("c = '\"'; d = getenv();", false), "c = ' '; d = getenv();");
  EXPECT_EQ(without_comments("s = R\"x(a // \" b)x\"; t", false), "s =                ; t");
}

struct DirectionCase {
  const char* path;
  const char* include;
  bool allowed;
};

TEST(IncludeDirection, PointsOnlyDownward) {
  const DirectionCase cases[] = {
      {"src/plan/resolve.cpp", "<lockstep/config/train_config.h>", true},
      {"src/plan/resolve.cpp", "<lockstep/plan/plan.h>", true},
      {"src/plan/resolve.cpp", "<lockstep/launch/launcher.h>", false},
      {"src/base/text.cpp", "<lockstep/config/train_config.h>", false},
      {"src/base/text.cpp", "<vector>", true},
      {"src/base/log.cpp", "<lockstep/version.h>", true},
      {"src/config/args.cpp", "\"environment/slurm.h\"", false},
      {"src/sampling/permutation.cpp", "<lockstep/config/train_config.h>", true},
      {"src/sampling/permutation.cpp", "<lockstep/config/config_io.h>", false},
      {"src/storage/commit.cpp", "\"report/console.h\"", false},
      {"src/report/csv_sink.cpp", "<lockstep/base/control.h>", true},
      {"include/lockstep/world/world.h", "<lockstep/plan/plan.h>", true},
      {"include/lockstep/world/world.h", "<lockstep/optim/precision.h>", false},
      {"src/world/rendezvous.cpp", "\"environment/store_listener.h\"", true},
      {"src/world/rendezvous.cpp", "\"launch/launcher.h\"", false},
      {"src/trainer/fit.cpp", "\"rank/signals.h\"", false},
      {"src/data/data_loader.cpp", "<lockstep/sampling/distributed_sampler.h>", true},
      {"src/data/data_loader.cpp", "<lockstep/parallel/strategy.h>", false},
      {"src/checkpoint/checkpoint_store.cpp", "\"data/worker_pool.h\"", false},
      {"src/nn/recompute.cpp", "<lockstep/checkpoint/rng_state.h>", true},
      {"src/nn/lora.cpp", "<lockstep/trainer/callbacks.h>", false},
      {"src/trainer/trainer.cpp", "<lockstep/checkpoint/checkpoint_store.h>", true},
      {"src/trainer/trainer.cpp", "<lockstep/session.h>", true},
      {"src/trainer/trainer.cpp", "<lockstep/run.h>", false},
      {"src/session.cpp", "<lockstep/world/world.h>", true},
      {"src/session.cpp", "<lockstep/trainer/trainer.h>", false},
      {"src/run.cpp", "<lockstep/session.h>", true},
      {"include/lockstep/lockstep.h", "<lockstep/run.h>", true},
      {"include/lockstep/base/log.h", "<lockstep/fwd.h>", false},
      {"src/world/world.cpp", "\"lockstep/world/world.h\"", false},
      {"src/world/world.cpp", "\"wrld/world_access.h\"", false},
  };
  for (const auto& [path, include, allowed] : cases) {
    const Findings findings = check_include_direction({path, fmt::format("// x\n#include {}\n", include)});
    if (allowed) {
      EXPECT_THAT(findings, IsEmpty()) << path;
    } else {
      EXPECT_THAT(findings, ElementsAre(HasSubstr(fmt::format("{}:2: ", path)))) << include;
    }
  }
}

TEST(IncludeDirection, WantsARowForEveryModule) {
  EXPECT_THAT(check_include_direction({"src/magic/wand.cpp", ""}), ElementsAre(HasSubstr("\"magic\" has no row")));
  EXPECT_THAT(check_include_direction({"tests/unit/base/text_test.cpp", "#include \"rank/signals.h\"\n"}), IsEmpty());
}

TEST(IncludeDirection, DoesNotReadComments) {
  EXPECT_THAT(check_include_direction({"src/base/text.cpp", "// #include <lockstep/run.h>\n"}), IsEmpty());
}

TEST(ThirdPartyIncludes, KeepTorchAboveTheLine) {
  for (const char* header : {"torch/types.h", "ATen/core/Tensor.h", "c10/core/Device.h"}) {
    const std::string text = fmt::format("#include <{}>\n", header);
    EXPECT_THAT(check_third_party_includes({"src/plan/resolve.cpp", text}), ElementsAre(HasSubstr("torch-free")))
        << header;
    EXPECT_THAT(check_third_party_includes({"include/lockstep/base/log.h", text}),
                ElementsAre(HasSubstr("torch-free")));
    EXPECT_THAT(check_third_party_includes({"src/world/world.cpp", text}), IsEmpty()) << header;
  }
}

TEST(ThirdPartyIncludes, HaveOneHome) {
  const std::string umbrella = "#include <torch/torch.h>\n";
  EXPECT_THAT(check_third_party_includes({"src/trainer/trainer.cpp", umbrella}), ElementsAre(HasSubstr("no file")));
  EXPECT_THAT(check_third_party_includes({"tests/unit/world/world_test.cpp", umbrella}), IsEmpty());
  const std::string json = "#include <nlohmann/json.hpp>\n";
  EXPECT_THAT(check_third_party_includes({"src/base/json.h", json}), IsEmpty());
  EXPECT_THAT(check_third_party_includes({"src/storage/manifest.cpp", json}),
              ElementsAre(HasSubstr("src/base/json.h")));
}

TEST(ProcessWideNames, StandOnlyWhereTheyBelong) {
  const auto check = [](const char* text) { return check_process_wide_names({"src/plan/resolve.cpp", text}); };
  EXPECT_THAT(check("\nauto x = std::getenv(\"HOME\");"), ElementsAre(HasSubstr("src/plan/resolve.cpp:2: getenv")));
  EXPECT_THAT(check("::setenv(a, b, 1);"), ElementsAre(HasSubstr("setenv")));
  EXPECT_THAT(check("read_environment();"), ElementsAre(HasSubstr("read_environment may be used only in")));
  EXPECT_THAT(check("std::exit(1);"), ElementsAre(HasSubstr("std::exit")));
  EXPECT_THAT(check("std::cout << 1;"), ElementsAre(HasSubstr("std::cout")));
  EXPECT_THAT(check("std::chrono::system_clock::now();"), ElementsAre(HasSubstr("system_clock")));
  EXPECT_THAT(check("environment(); // not getenv\nthrow Error(\"getenv\"); my_getenv();"), IsEmpty());
}

TEST(PublicHeader, BeginsWithCommentThenPragma) {
  const auto check = [](const char* text) { return check_public_header({"include/lockstep/x.h", text}); };
  EXPECT_THAT(check("// lockstep/x.h\n//\n// Why.\n#pragma once\n#include <vector>\n"), IsEmpty());
  EXPECT_THAT(check("#pragma once\n// late\n"), ElementsAre(HasSubstr("comment")));
  EXPECT_THAT(check("// x\n#include <vector>\n#pragma once\n"), ElementsAre(HasSubstr("#pragma once")));
  EXPECT_THAT(check("// x\n"), ElementsAre(HasSubstr("#pragma once")));
  EXPECT_THAT(check("// x\n#pragma once\n\nnamespace lockstep {\n"), ElementsAre(HasSubstr("visibility")));
}

TEST(Listed, FindsFilesThatNothingBuilds) {
  const std::vector<std::string> lists = {"target_sources(lockstep PRIVATE world.cpp process_group.cpp)", "x(run.cpp)"};
  EXPECT_THAT(check_listed({"src/world/world.cpp", ""}, lists), IsEmpty());
  EXPECT_THAT(check_listed({"src/run.cpp", ""}, lists), IsEmpty());
  EXPECT_THAT(check_listed({"src/world/group.cpp", ""}, lists), ElementsAre(HasSubstr("src/world/group.cpp")));
}

TEST(Links, ResolveFromTheirDocument) {
  const auto exists = [](const std::string& path) { return path == "docs/errors.md" || path == "README.md"; };
  const auto check = [&](const char* text) { return check_links({"docs/launching.md", text}, exists); };
  EXPECT_THAT(check("see [errors](errors.md#exit-codes), [home](../README.md), [here](#top)"), IsEmpty());
  EXPECT_THAT(check("[web](https://example.org/x.md) [mail](mailto:a@b.c)"), IsEmpty());
  EXPECT_THAT(check("```\n[](lambda.md)\n```\n"), IsEmpty());
  EXPECT_THAT(check("\n[a](errors.md) and [b](eror.md)"),
              ElementsAre(HasSubstr("docs/launching.md:2: link to eror.md")));
}

TEST(Settings, AreThoseOfTheFieldTable) {
  const auto fields = parse_field_names("visit(Info{.name = \"seed\"}, c.seed); visit(Info{.name = \"optim.lr\"},");
  EXPECT_THAT(fields, ElementsAre("optim.lr", "seed"));
  const auto check = [&](const std::string& text) { return check_settings({"a.md", text}, fields, {"config"}); };
  EXPECT_THAT(check("`--optim.lr 1`, --no-optim.lr, `optim.lr`, a--x.y, `optimizer.x`, `optim.safetensors`\n"),
              IsEmpty());
  EXPECT_THAT(check("\n`--optim.rate 1`\n"), ElementsAre("a.md:2: --optim.rate is no setting"));
  EXPECT_THAT(check("`optim.rate`\n"), ElementsAre(HasSubstr("optim.rate")));
  EXPECT_THAT(check("`lockstep run --tee 1 -- ./train --seed 1 --config x` `--sed`\n"), IsEmpty());
  EXPECT_THAT(check("`lockstep run --tee 1 -- ./train --sed 1`\n"), ElementsAre("a.md:1: --sed is no setting"));
  const std::string table = "| there | here | else |\n|---|---|---|\n";
  EXPECT_THAT(check(table + "| `--epochs` | `--seed 1`, `--config` | `--x` |\n\n| `--a` | `--b` |\n"), IsEmpty());
  EXPECT_THAT(check(table + "| `--epochs` | `--seed`, `--sed 1` | |\n"), ElementsAre(HasSubstr("a.md:3: --sed")));
}

TEST(Quotes, AreTextsOfTheProgram) {
  const std::string code = "f(\"rank {} has \"\n  \"no \\\"data\\\"\", '\"', \"second\"); // \"comment\"\n";
  EXPECT_EQ(string_literals(code), "\nrank {} has no \"data\"\nsecond");
  EXPECT_EQ(string_literals("f(R\"x(one \")x\", other, \"two\")"), "\nR\"x(one \")x\"\ntwo");
  const auto check = [&](const std::string& row) {
    return check_quotes({"a.md", "| what you see | cause |\n|---|---|\n" + row}, string_literals(code));
  };
  EXPECT_THAT(check("| `rank ... has no \"data\"` and `second`, prose | `other text` |\n\n| `free text` | |\n"),
              IsEmpty());
  EXPECT_THAT(check("| `rank ... has some data` | |\n"), ElementsAre(HasSubstr("a.md:3: ")));
  EXPECT_THAT(check("| `comment` | |\n"), ElementsAre(HasSubstr("comment")));
}

TEST(Messages, AreTextsOfTheProgram) {
  const std::string literals = "\nrank {} has no data (found {} of {} samples)\nsettings: \n: no data\nMASTER_PORT is";
  const auto check = [&](const std::string& row) {
    return check_messages({"a.md", "| message | cause |\n|---|---|\n" + row}, literals);
  };
  EXPECT_THAT(check("| `rank R has no data (found N of M samples)`, `--optim.lr X: no data: ...` | `other` |\n"),
              IsEmpty());
  EXPECT_THAT(check("| `MASTER_PORT is`, `--optim.lr 1` of `R` (exit 2) | |\n\n| `free text` | |\n"), IsEmpty());
  EXPECT_THAT(check("| `rank R has some data` | |\n"),
              ElementsAre("a.md:3: the program has no text \"has some data\""));
  EXPECT_THAT(check("| `rank r has no data` | |\n"), ElementsAre(HasSubstr("rank r has no data")));
  EXPECT_THAT(check("| `cannot has no data: MASTER_PORT is; no data` | |\n"), IsEmpty()) << "parts of the program";
  EXPECT_THAT(check("| `has no data: nothing at all` | |\n"), ElementsAre(HasSubstr("has no data: nothing at all")));
  EXPECT_THAT(check("| `--optim.lr X: some data: ...` | |\n"), ElementsAre(HasSubstr("\"some data\"")));
}

TEST(FirstDiff, SaysHowTwoFilesDiffer) {
  const SourceFile before{"1.cpp", "// one\nint a();\nint b = 1;\n\nint c;\n"};
  const SourceFile after{"2.cpp", "// two\n// lines\nint a();\nint b = 2;  // changed\nint c;\n"};
  const auto check = [&](const std::string& block, const SourceFile& to) {
    return check_first_diff({"a.md", "text\n\n```diff\n" + block + "```\n"}, before, to);
  };
  EXPECT_THAT(check("-int b = 1;\n+int b = 2;  // changed\n", after), IsEmpty());
  EXPECT_THAT(check("-int b = 1;\n+int b = 2;\n", after), ElementsAre("a.md: 2.cpp has no line \"int b = 2;\""));
  const std::string other = "a.md: 1.cpp and 2.cpp differ in other lines than its diff";
  EXPECT_THAT(check("-int b = 1;\n+int b = 2;  // changed\n", {"2.cpp", after.text + "int d;\n"}), ElementsAre(other));
  EXPECT_THAT(check("+int b = 2;  // changed\n", after), ElementsAre(other));
  EXPECT_THAT(check_first_diff({"a.md", "x\n"}, before, after), ElementsAre("a.md: found no block \"diff\""));
}

TEST(ForeignNames, AreOnTheirPage) {
  const auto names = parse_foreign_names(
      "namespace {\nconstexpr Name kRows[] = {\n    // one, {\"no\"}\n    {\"epochs n_epochs \"\n     \"epoch\", \"use "
      "X\", \"x\"},\n"
      "    {\"early.monitor\",\n     kHint},\n};\n");
  EXPECT_THAT(names, ElementsAre("early.monitor", "epoch", "epochs", "n_epochs"));
  const auto check = [&](const std::string& text) { return check_names_are_named({"a.md", text}, names); };
  EXPECT_THAT(check("| `--n-epochs 3`, `Epoch` | `monitor` |\n`epochs`\n"), IsEmpty());
  EXPECT_THAT(check("| `--n-epochs 3`, epoch | `early.monitor` |\n`epochs`\n"),
              ElementsAre("a.md: epoch is not named"));
}

TEST(Initializers, HaveTheOrderOfAStruct) {
  const std::string header =
      "struct Search {\n  int init = 2;  ///< a; b\n  std::function<bool(int x)> when{};\n"
      "  enum class Kind {\n    one,\n  };\n  int steps;\n};\nstruct Other {\n  int steps;\n  int init;\n  int "
      "last;\n};\n";
  const auto structs = parse_fields({"a.h", header});
  EXPECT_THAT(structs, Contains(ElementsAre("init", "when", "steps")));
  const auto check = [&](const std::string& text) { return check_initializers({"a.md", text}, structs); };
  EXPECT_THAT(check("`f({.init = 2, .steps = 3})`, `{.steps = 3, .init = 2}`, {.last = 1, .init = 1}"), IsEmpty());
  EXPECT_THAT(check("\n`{.steps = 3, .when = f}` or `{.init = 2, .last = 1, .when = f}`"),
              ElementsAre("a.md:2: no struct has the fields steps, when in this order",
                          "a.md:2: no struct has the fields init, last, when in this order"));
}

TEST(TestNames, AreThoseOfCodeAndBuildFiles) {
  const std::string code =
      "TEST(A, B) {}\n\nTEST_F(C,\n       D) {\n}\n// TEST(E, F)\n  TEST(G, H)\nTEST_P(I, J) {}\n"
      "LOCKSTEP_DEVICE_TEST(K, L) { f(1, 2); }\n";
  EXPECT_THAT(parse_test_names({"a_test.cpp", code}), ElementsAre("A.B", "C.D", "I.J", "KOnCpu.L", "KOnGpu.L"));
  const std::string list = "add_test(NAME x COMMAND y)\nadd_test(NAME z\n  COMMAND y)\n";
  EXPECT_THAT(parse_test_names({"CMakeLists.txt", list}), ElementsAre("x", "z"));
}

TEST(TestsOfTables, Exist) {
  const auto check = [](const std::string& row) {
    return check_tests({"a.md", "| what | test | else |\n|---|---|---|\n" + row}, {"A.B", "x"});
  };
  EXPECT_THAT(check("| `f` | `A.B`, `x` (two GPUs) | `g` |\n\n| `C.D` | `C.D` |\n"), IsEmpty());
  EXPECT_THAT(check("| `f` | `A.B`, `A.C` | |\n"), ElementsAre("a.md:3: A.C is no test"));
  EXPECT_THAT(check("| `f` | A.B | |\n"), ElementsAre("a.md:3: the row names no test"));
}

TEST(Symptoms, HaveATestThatProvokesThem) {
  const std::string table = "| what you see | cause |\n|---|---|\n";
  const SourceFile page{"page.md", table + "| `rank ... has no data: ...` | x |\n\n" + table + "| it is slow | y |\n"};
  const auto check = [&](const std::string& rows) {
    return check_symptoms(page, {"list.md", "| what you see | test |\n|---|---|\n" + rows},
                          {{"A.B", "rank 1 has no data"}, {"C.D", "another text"}});
  };
  const std::string right = "| `rank ... has no data: ...` | `C.D`, `A.B` |\n";
  const std::string slow = "| it is slow | no test: a time |\n";
  EXPECT_THAT(check(right + slow), IsEmpty());
  EXPECT_THAT(check(slow + "| `rank ... has no data: ...` | `C.D` |\n"),
              ElementsAre("list.md:4: no file of its tests has the text \"has no data\""));
  EXPECT_THAT(check(right), ElementsAre("list.md does not list the row | it is slow | of page.md"));
  EXPECT_THAT(check(right + slow + slow), ElementsAre(HasSubstr("list.md:5: page.md has no such row")));
  EXPECT_THAT(check(right + "| it is slow | `A.B`, `A.C` |\n"), ElementsAre("list.md:4: A.C is no test"));
  for (const char* nothing : {"no test: ", "", "soon"}) {
    EXPECT_THAT(check(right + "| it is slow | " + nothing + "|\n"), ElementsAre(HasSubstr("neither a test nor")));
  }
}

constexpr const char* kGlossary =
    "# Glossary\n\n## Terms\n\n| term | meaning | where |\n|---|---|---|\n| rank | a process | `a.h` |\n"
    "| `World` | all ranks | `b.h` |\n\n## Forbidden synonyms\n\n| do not write | write | except in |\n|---|---|---|\n"
    "| gizmo, gizmo set | gadget | |\n| widget | window | `src/old.py`: its format has this name |\n";

TEST(Glossary, IsReadFromItsTables) {
  const Glossary glossary = parse_glossary(kGlossary);
  EXPECT_THAT(glossary.terms, ElementsAre("rank", "World"));
  ASSERT_EQ(glossary.synonyms.size(), 3U);
  EXPECT_EQ(glossary.synonyms[1].phrase, "gizmo set");
  EXPECT_THAT(glossary.synonyms[2].exceptions, ElementsAre("src/old.py"));
}

TEST(Synonyms, AreFoundAsWholeWords) {
  const auto synonyms = parse_glossary(kGlossary).synonyms;
  EXPECT_THAT(check_synonyms({"src/a.cpp", "// x\nlog(\"Gizmo not found\");\n"}, synonyms),
              ElementsAre("src/a.cpp:2: \"gizmo\", write: gadget"));
  EXPECT_THAT(check_synonyms({"src/a.cpp", "int gizmo_; Gizmos();\n"}, synonyms), IsEmpty());
  EXPECT_THAT(check_synonyms({"src/a.py", "# widget\n"}, synonyms), ElementsAre(HasSubstr("window")));
  EXPECT_THAT(check_synonyms({"src/old.py", "# widget\n"}, synonyms), IsEmpty());
}

TEST(PublicTypes, NeedATerm) {
  const std::vector<std::string> terms{"Plan", "Kind"};
  EXPECT_THAT(check_types_have_terms({"a.h", "class Console;\nstruct Plan {\n  struct Inner {};\n};\n"}, terms),
              IsEmpty());
  EXPECT_THAT(check_types_have_terms({"a.h", "// class Old {\nenum class Kind : int { a };\n"}, terms), IsEmpty());
  EXPECT_THAT(check_types_have_terms({"a.h", "\nclass [[nodiscard]] Scope final\n    : public Base {\n"}, terms),
              ElementsAre("a.h:2: Scope is not in docs/glossary.md"));
  EXPECT_THAT(check_types_have_terms({"a.h", "enum class Mode { a };\n"}, terms), ElementsAre(HasSubstr(": Mode is")));
}

TEST(Paths, BetweenBackticksExist) {
  const auto exists = [](const std::string& path) { return path == "src/base/log.cpp"; };
  EXPECT_THAT(check_paths({"a.md", "`src/base/log.cpp`, `World::size`, src/no.cpp\n"}, exists), IsEmpty());
  EXPECT_THAT(check_paths({"a.md", "x\n`src/no.cpp`\n"}, exists), ElementsAre("a.md:2: src/no.cpp does not exist"));
}

TEST(GpuCode, IsListed) {
  const std::string table = "| `src/data/listed.cpp` | copies |\n";
  const std::string code = "void f() { if (device.is_cuda()) {} }\n";
  EXPECT_THAT(check_gpu_code_is_listed({"src/data/listed.cpp", code}, table), IsEmpty());
  EXPECT_THAT(check_gpu_code_is_listed({"src/data/other.cpp", code}, table), ElementsAre(HasSubstr("is_cuda")));
  EXPECT_THAT(check_gpu_code_is_listed({"src/data/other.cpp", "// is_cuda()\n"}, table), IsEmpty());
}

}  // namespace
}  // namespace lockstep::structure
