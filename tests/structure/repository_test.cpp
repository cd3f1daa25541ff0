// The rules of source_rules.h, applied to this repository.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "structure/source_rules.h"

namespace lockstep::structure {
namespace {

namespace fs = std::filesystem;

const fs::path kRoot = LOCKSTEP_SOURCE_DIR;

std::string read(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return std::move(text).str();
}

/// All files below `folder` whose names end in one of `endings`.
std::vector<SourceFile> files(const fs::path& folder, const std::vector<std::string>& endings) {
  std::vector<SourceFile> found;
  if (!fs::exists(kRoot / folder)) {
    return found;
  }
  for (const auto& entry : fs::recursive_directory_iterator(kRoot / folder)) {
    if (entry.is_regular_file() && std::ranges::count(endings, entry.path().extension().string()) > 0) {
      found.push_back({fs::relative(entry.path(), kRoot).string(), read(entry.path())});
    }
  }
  return found;
}

std::vector<SourceFile> library() {
  auto all = files("src", {".cpp", ".h"});
  std::ranges::move(files("include", {".h"}), std::back_inserter(all));
  return all;
}

void expect_none(const std::vector<SourceFile>& sources, const std::function<Findings(const SourceFile&)>& check) {
  ASSERT_FALSE(sources.empty());
  for (const SourceFile& file : sources) {
    for (const std::string& finding : check(file)) {
      ADD_FAILURE() << finding;
    }
  }
}

TEST(Repository, IncludesPointDownward) { expect_none(library(), check_include_direction); }

TEST(Repository, ThirdPartyHeadersAreAtHome) { expect_none(library(), check_third_party_includes); }

TEST(Repository, ProcessWideNamesAreAtHome) { expect_none(library(), check_process_wide_names); }

TEST(Repository, PublicHeadersBeginWithWhatTheyAreFor) { expect_none(files("include", {".h"}), check_public_header); }

TEST(Repository, EverySourceIsBuilt) {
  expect_none(files("src", {".cpp"}), [](const SourceFile& file) {
    const fs::path own = kRoot / fs::path(file.path).parent_path() / "CMakeLists.txt";
    return check_listed(file, {read(own), read(kRoot / "src/CMakeLists.txt")});
  });
}

// -O2, with which a release is built, makes no vector instructions of a loop of unknown length.
TEST(Repository, VectorizedLoopsAreBuiltForIt) {
  int found = 0;
  for (const SourceFile& file : files("src", {".cpp"})) {
    if (file.text.find("LOCKSTEP_VECTORIZED") == std::string::npos) {
      continue;
    }
    ++found;
    const fs::path path = file.path;
    EXPECT_THAT(
        read(kRoot / path.parent_path() / "CMakeLists.txt"),
        testing::ContainsRegex("set_source_files_properties\\(" + path.filename().string() + " [^\n]*\n[^\n]*-O3"))
        << "-O3 for " << file.path;
  }
  EXPECT_GE(found, 4);
}

TEST(Repository, EveryTestIsBuilt) {
  std::vector<SourceFile> tests = files("tests", {".cpp"});
  std::erase_if(tests, [](const SourceFile& file) { return !file.path.ends_with("_test.cpp"); });
  expect_none(tests, [](const SourceFile& file) {
    return check_listed(file, {read(kRoot / fs::path(file.path).parent_path() / "CMakeLists.txt")});
  });
}

// LOCKSTEP_REQUIRE lists all reasons, and can forbid skips.
TEST(Repository, TestsAreSkippedInOneWay) {
  std::vector<SourceFile> tests = files("tests", {".cpp", ".h"});
  std::erase_if(tests, [](const SourceFile& file) {
    return file.path == "tests/support/requirements.h" || file.path == "tests/structure/repository_test.cpp";
  });
  expect_none(tests, [](const SourceFile& file) {
    return file.text.find("GTEST_SKIP") == std::string::npos ? Findings() : Findings{file.path + ": GTEST_SKIP"};
  });
}

// With pipefail, a program that writes to a reader that has ended fails the pipeline by chance.
TEST(Repository, ScriptsReadPipesToTheirEnd) {
  std::vector<SourceFile> scripts;
  for (const char* folder : {"cmake", "examples", "tests", "docs"}) {
    std::ranges::move(files(folder, {".sh", ".sbatch"}), std::back_inserter(scripts));
  }
  const std::regex ends_early(R"(\|\s*(head\b|grep\s+-[a-zA-Z]*q))");
  expect_none(scripts, [&](const SourceFile& file) {
    return std::regex_search(file.text, ends_early) ? Findings{file.path + ": a pipeline into head or grep -q"}
                                                    : Findings();
  });
  EXPECT_TRUE(std::regex_search("ldconfig -p | grep -q x", ends_early)) << "control";
}

const fs::path kGlossary = "docs/glossary.md";

TEST(Repository, HasNoForbiddenSynonym) {
  const auto synonyms = parse_glossary(read(kRoot / kGlossary)).synonyms;
  ASSERT_FALSE(synonyms.empty());
  for (const ForbiddenSynonym& synonym : synonyms) {  // the control: each of them is found
    ASSERT_EQ(check_synonyms({"x", "// The " + synonym.phrase + ".\n"}, synonyms).size(), 1U) << synonym.phrase;
  }
  std::vector<SourceFile> sources;
  for (const char* name : {"README.md", "CONTRIBUTING.md", "SECURITY.md"}) {
    sources.push_back({name, read(kRoot / name)});
  }
  for (const char* folder : {"src", "include", "docs", "examples", "tests"}) {
    std::ranges::move(files(folder, {".cpp", ".h", ".md", ".py"}), std::back_inserter(sources));
  }
  std::erase_if(sources, [](const SourceFile& file) { return file.path == kGlossary; });
  expect_none(sources, [&](const SourceFile& file) { return check_synonyms(file, synonyms); });
}

TEST(Repository, GlossaryHasEveryPublicType) {
  const auto terms = parse_glossary(read(kRoot / kGlossary)).terms;
  expect_none(files("include", {".h"}), [&](const SourceFile& file) { return check_types_have_terms(file, terms); });
}

TEST(Repository, TablesOfTheDocumentsNameFilesThatExist) {
  for (const char* name : {"docs/architecture.md", "docs/gpu/README.md"}) {
    expect_none({{name, read(kRoot / name)}}, [](const SourceFile& document) {
      return check_paths(document, [](const std::string& path) { return fs::exists(kRoot / path); });
    });
  }
}

TEST(Repository, CodeForGpusIsListed) {
  const std::string table = read(kRoot / "docs/gpu/README.md");
  expect_none(files("src", {".cpp", ".h"}),
              [&](const SourceFile& file) { return check_gpu_code_is_listed(file, table); });
}

/// The pages at the top level, in docs and in examples.
std::vector<SourceFile> documents() {
  std::vector<SourceFile> all;
  for (const char* name : {"README.md", "CONTRIBUTING.md", "SECURITY.md"}) {
    all.push_back({name, read(kRoot / name)});
  }
  for (const char* folder : {"docs", "examples"}) {
    std::ranges::move(files(folder, {".md"}), std::back_inserter(all));
  }
  return all;
}

TEST(Repository, InitializersInTheDocumentsHaveTheOrderOfTheStruct) {
  std::vector<Fields> structs;
  for (const SourceFile& header : files("include", {".h"})) {
    std::ranges::move(parse_fields(header), std::back_inserter(structs));
  }
  ASSERT_GT(structs.size(), 50U);
  EXPECT_THAT(check_initializers({"a.md", "`{.no_such = 1, .field = 2}`"}, structs), testing::SizeIs(1)) << "control";
  expect_none(documents(), [&](const SourceFile& page) { return check_initializers(page, structs); });
}

TEST(Repository, SettingsInTheDocumentsExist) {
  const auto fields = parse_field_names(read(kRoot / "src/config/fields.h"));
  ASSERT_GT(fields.size(), 80U);
  auto pages = documents();
  // The changelog also has settings that were removed.
  std::erase_if(pages, [](const SourceFile& page) { return page.path == "docs/changelog.md"; });
  expect_none(pages, [&](const SourceFile& page) {
    return check_settings(page, fields, {"config", "print-config", "dry-run", "hardware", "help", "find_lr"});
  });
}

TEST(Repository, TextsInTroubleshootingAreThoseOfTheProgram) {
  std::string literals;
  for (const SourceFile& file : files("src", {".cpp", ".h"})) {
    literals += string_literals(file.text);
  }
  const SourceFile page{"docs/troubleshooting.md", read(kRoot / "docs/troubleshooting.md")};
  EXPECT_THAT(check_quotes({page.path, "| what you see |\n| `no such text` |\n"}, literals), testing::SizeIs(1));
  expect_none({page}, [&](const SourceFile& file) { return check_quotes(file, literals); });
}

TEST(Repository, MessagesOfTheErrorPageAreThoseOfTheProgram) {
  // Of the system and of libraries.
  std::string literals =
      "\nResource temporarily unavailable\nCannot assign requested address\nIntel oneMKL FATAL ERROR: Cannot load\n"
      "gloo::IoException\nc10::AcceleratorError\n";
  for (const char* folder : {"src", "tests"}) {
    for (const SourceFile& file : files(folder, {".cpp", ".h"})) {
      literals += file.path.starts_with("tests/structure") ? "" : string_literals(file.text);
    }
  }
  const SourceFile page{"docs/errors.md", read(kRoot / "docs/errors.md")};
  EXPECT_THAT(check_messages({page.path, "| message |\n| `no such text of rank R` |\n"}, literals), testing::SizeIs(1));
  expect_none({page}, [&](const SourceFile& file) { return check_messages(file, literals); });
}

TEST(Repository, NamesOfOtherSystemsAreInMigration) {
  const auto names = parse_foreign_names(read(kRoot / "src/config/foreign_names.cpp"));
  ASSERT_GT(names.size(), 600U);
  const SourceFile page{"docs/migration.md", read(kRoot / "docs/migration.md")};
  EXPECT_THAT(check_names_are_named(page, {"zebra_size"}), testing::SizeIs(1)) << "control";
  expect_none({page}, [&](const SourceFile& file) { return check_names_are_named(file, names); });
}

TEST(Repository, TheSecondExampleIsTheFirstWithOneChange) {
  const SourceFile page{"examples/README.md", read(kRoot / "examples/README.md")};
  const SourceFile one{"examples/01_single_device.cpp", read(kRoot / "examples/01_single_device.cpp")};
  const SourceFile all{"examples/02_multi_device.cpp", read(kRoot / "examples/02_multi_device.cpp")};
  EXPECT_THAT(check_first_diff(page, all, one), testing::Not(testing::IsEmpty())) << "control";
  expect_none({page}, [&](const SourceFile& file) { return check_first_diff(file, one, all); });
}

TEST(Repository, TestsOfComplaintsExist) {
  std::set<std::string> tests;
  for (const SourceFile& file : files("tests", {".cpp", ".txt"})) {
    tests.merge(parse_test_names(file));
  }
  ASSERT_GT(tests.size(), 2000U);
  const SourceFile page{"docs/complaints.md", read(kRoot / "docs/complaints.md")};
  EXPECT_THAT(check_tests({page.path, "| here | test |\n| x | `No.Test` |\n"}, tests), testing::SizeIs(1));
  expect_none({page}, [&](const SourceFile& file) { return check_tests(file, tests); });
}

TEST(Repository, SymptomsInTroubleshootingHaveATest) {
  std::vector<SourceFile> sources = files("tests", {".cpp", ".txt"});
  std::map<std::string, std::string_view> tests;
  for (SourceFile& file : sources) {
    const auto names = parse_test_names(file);
    file.text = file.path.ends_with(".cpp") && !names.empty() ? string_literals(file.text) : "";
    for (const std::string& name : names) {
      tests.emplace(name, file.text);
    }
  }
  const std::vector<SourceFile> scripts = files("tests", {".cmake", ".py"});
  for (const SourceFile& script : scripts) {
    tests.emplace(script.path, script.text);
  }
  const SourceFile page{"docs/troubleshooting.md", read(kRoot / "docs/troubleshooting.md")};
  const SourceFile list{"tests/structure/symptoms.md", read(kRoot / "tests/structure/symptoms.md")};
  EXPECT_THAT(check_symptoms({page.path, page.text + "\n| what you see |\n|---|\n| a new row |\n"}, list, tests),
              testing::SizeIs(1));
  expect_none({page}, [&](const SourceFile& file) { return check_symptoms(file, list, tests); });
}

TEST(Repository, LinksOfTheDocumentsResolve) {
  expect_none(documents(), [](const SourceFile& document) {
    return check_links(document, [](const std::string& path) { return fs::exists(kRoot / path); });
  });
}

/// The commands of the README's section "Two commands".
std::vector<std::string> commands_of_readme() {
  const std::string text = read(kRoot / "README.md");
  const std::string section = text.substr(text.find("## Two commands"));
  std::vector<std::string> commands;
  static const std::regex kCommand("\n(\\./[^ \n]+)");
  const auto end = section.begin() + static_cast<std::ptrdiff_t>(section.find("\n```\n"));
  for (std::sregex_iterator match(section.begin(), end, kCommand); match != std::sregex_iterator(); ++match) {
    commands.push_back((*match)[1]);
  }
  return commands;
}

// Containers cannot be built in the tests.
TEST(Repository, ContainersRunTheTwoCommandsOfTheReadme) {
  const auto commands = commands_of_readme();
  ASSERT_THAT(commands, testing::ElementsAre("./examples/quickstart.sh", "./tests/run.sh"));
  for (const std::string& command : commands) {
    EXPECT_TRUE(fs::exists(kRoot / command)) << command;
  }

  static const std::regex kInstruction("(FROM|RUN|COPY|WORKDIR) [^\n]+|#[^\n]*|");
  std::vector<std::string> runs;
  std::istringstream lines(read(kRoot / "Dockerfile"));
  std::string from;
  for (std::string line; std::getline(lines, line);) {
    EXPECT_TRUE(std::regex_match(line, kInstruction)) << "Dockerfile: " << line;
    if (line.starts_with("RUN ")) {
      runs.push_back(line.substr(4));
    } else if (from.empty() && line.starts_with("FROM ")) {
      from = line;
    }
  }
  EXPECT_EQ(runs, commands);
  EXPECT_THAT(from, testing::StartsWith("FROM debian:12"));

  const auto container = nlohmann::json::parse(read(kRoot / ".devcontainer/devcontainer.json"));
  EXPECT_EQ(container.at("image"), "debian:12");
  EXPECT_EQ(container.at("onCreateCommand"), commands[0]);
  EXPECT_EQ(container.at("postCreateCommand"), commands[1]);
}

}  // namespace
}  // namespace lockstep::structure
