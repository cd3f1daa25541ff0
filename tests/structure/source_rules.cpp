#include "structure/source_rules.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>
#include <optional>
#include <sstream>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace lockstep::structure {

namespace {

using Names = std::vector<std::string_view>;

const Names kCore = {"base",      "config", "environment", "plan",    "failure", "ipc",    "rank",
                     "supervise", "launch", "sampling",    "storage", "formats", "report", "version"};

/// What each module may include besides itself: what it does include, so a new dependency changes this table.
/// docs/architecture.md has the picture.
const std::map<std::string_view, Names>& layers() {
  static const std::map<std::string_view, Names> table = {
      {"version", {}},
      {"fwd", {}},
      {"base", {"version"}},
      {"config", {"base"}},
      {"environment", {"version", "base"}},
      {"plan", {"base", "config", "environment"}},
      {"failure", {"base", "environment"}},
      {"ipc", {"base", "failure"}},
      {"rank", {"base", "failure", "ipc"}},
      {"supervise", {"base", "environment", "failure", "ipc"}},
      {"launch", {"base", "environment", "failure", "ipc", "supervise"}},
      {"sampling", {"base", "lockstep/config/train_config.h"}},
      {"storage", {"base", "environment"}},
      {"formats", {"base"}},
      {"report", {"base", "ipc"}},
      {"cli", {"version", "base", "config", "environment", "plan", "supervise", "launch", "storage", "report"}},
      {"tensor", {"base", "storage"}},
      {"world", {"version", "base", "config", "environment", "plan", "failure", "ipc", "fwd", "tensor"}},
      {"optim", {"base", "config", "fwd", "tensor", "world"}},
      {"metrics", {"base", "fwd", "tensor", "world"}},
      {"parallel", {"base", "config", "environment", "plan", "ipc", "fwd", "tensor", "world", "optim"}},
      {"data", {"base", "environment/process_name.h", "plan", "ipc", "sampling", "formats", "fwd", "tensor", "world"}},
      {"checkpoint", {"base", "config", "environment", "plan", "sampling", "storage", "fwd", "tensor", "world"}},
      {"nn", {"base", "fwd", "tensor", "optim", "checkpoint"}},
      {"session", {"base", "config", "environment", "plan", "report", "world", "checkpoint"}},
      {"session_access", {"session"}},
      {"trainer",
       {"base", "config", "environment", "plan", "ipc", "sampling", "storage", "report", "fwd", "tensor", "world",
        "optim", "metrics", "parallel", "data", "checkpoint", "nn", "session", "session_access"}},
      {"worker",
       {"base", "environment", "plan", "failure", "ipc", "rank", "supervise", "launch", "report", "world", "checkpoint",
        "session", "session_access", "trainer"}},
      {"run",
       {"base", "config", "environment", "plan", "failure", "rank", "supervise", "launch", "storage", "world",
        "session", "worker", "trainer/output/run_end.h"}},
      {"lockstep", {"base", "trainer", "run"}},
      {"probe", {"base", "world", "parallel", "data", "checkpoint", "session", "trainer", "lockstep"}},
  };
  return table;
}

struct Home {
  std::string_view what;
  Names files;
};

/// Headers that are expensive to compile, or a dependency that one file hides from the others.
const std::vector<Home>& header_homes() {
  static const std::vector<Home> homes = {
      {"nlohmann/", {"src/base/json.h"}},
      {"toml++/", {"src/config/toml.cpp"}},
      {"torch/csrc/distributed/c10d/ProcessGroup.hpp", {"src/world/planes.h", "src/world/world_impl.h"}},
      {"torch/csrc/distributed/c10d/ProcessGroupGloo.hpp", {"src/world/gloo_process_group.cpp"}},
      {"torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp", {"src/world/nccl_process_group.cpp"}},
      {"torch/csrc/distributed/c10d/reducer.hpp", {"src/parallel/ddp_optimizer.cpp"}},
      {"torch/torch.h", {}},
  };
  return homes;
}

const std::vector<Home>& name_homes() {
  static const std::vector<Home> homes = {
      {"getenv", {}},
      {"secure_getenv", {}},
      {"setenv", {"src/world/cuda_library.cpp"}},
      {"unsetenv", {"src/worker.cpp", "src/world/cuda_library.cpp"}},
      {"putenv", {}},
      {"environ", {"src/base/variables.cpp"}},
      {"read_environment",
       {"include/lockstep/base/variables.h", "src/base/kept_memory.cpp", "src/base/variables.cpp", "src/cli/main.cpp",
        "src/cli/launch/run_flags.cpp", "src/environment/hardware.cpp", "src/run.cpp", "src/session.cpp",
        "src/trainer/output/run_files.cpp", "src/world/connect.cpp", "src/world/cuda_library.cpp"}},
      {"std::exit", {}},
      {"std::filesystem::remove_all", {}},  // see RealFileSystem::remove_all
      {"std::quick_exit", {}},
      {"std::cout", {"src/failure/end_process.cpp"}},
      {"system_clock", {"src/base/text.cpp", "src/base/wall_clock.cpp", "src/environment/job_end.cpp"}},
  };
  return homes;
}

bool contains(const Names& names, std::string_view name) { return std::ranges::find(names, name) != names.end(); }

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

/// Whether `word` stands in the text as a word of its own.
bool has_word(std::string_view text, std::string_view word) {
  for (std::size_t at = text.find(word); at != std::string_view::npos; at = text.find(word, at + 1)) {
    const std::size_t end = at + word.size();
    if ((at == 0 || !is_word(text[at - 1])) && (end == text.size() || !is_word(text[end]))) {
      return true;
    }
  }
  return false;
}

/// "src/base/log.cpp", "include/lockstep/base/log.h" -> "base"; "src/run.cpp" -> "run"; nullopt: outside the library.
std::optional<std::string> module_of(std::string_view path) {
  for (const std::string_view root : {"include/lockstep/", "src/"}) {
    if (path.starts_with(root)) {
      path.remove_prefix(root.size());
      return std::string(path.substr(0, path.find_first_of("/.")));
    }
  }
  return std::nullopt;
}

struct Include {
  std::size_t line;
  bool quoted;
  std::string path;
};

std::vector<Include> includes_of(std::string_view text) {
  std::vector<Include> found;
  std::istringstream lines(without_comments(text, /*keep_literals=*/true));
  std::string line;
  for (std::size_t number = 1; std::getline(lines, line); ++number) {
    const std::size_t hash = line.find_first_not_of(" \t");
    if (hash == std::string::npos || line[hash] != '#' || line.find("include", hash) == std::string::npos) {
      continue;
    }
    const std::size_t open = line.find_first_of("<\"");
    const std::size_t close = line.find_last_of(">\"");
    if (open != std::string::npos && close > open) {
      found.push_back({number, line[open] == '"', line.substr(open + 1, close - open - 1)});
    }
  }
  return found;
}

/// `begin`: where its R is.
std::size_t end_of_raw_literal(std::string_view text, std::size_t begin) {
  const std::size_t open = std::min(text.find('(', begin), text.size());
  const std::string mark = fmt::format("){}\"", text.substr(begin + 2, open - begin - 2));
  const std::size_t at = text.find(mark, open);
  return at == std::string_view::npos ? text.size() : at + mark.size();
}

}  // namespace

std::string without_comments(std::string_view text, bool keep_literals) {
  std::string out(text);
  const auto blank = [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < std::min(end, out.size()); ++i) {
      out[i] = out[i] == '\n' ? '\n' : ' ';
    }
  };
  const auto end_after = [&](std::string_view mark, std::size_t from) {
    const std::size_t at = text.find(mark, from);
    return at == std::string_view::npos ? text.size() : at + mark.size();
  };
  for (std::size_t i = 0; i < text.size();) {
    const std::string_view rest = text.substr(i);
    std::size_t end = i + 1;
    if (rest.starts_with("//")) {
      end = std::min(text.find('\n', i), text.size());
      blank(i, end);
    } else if (rest.starts_with("/*")) {
      end = end_after("*/", i + 2);
      blank(i, end);
    } else if (rest.starts_with("R\"")) {
      end = end_of_raw_literal(text, i);
      if (!keep_literals) {
        blank(i, end);
      }
    } else if (text[i] == '"' || (text[i] == '\'' && (i == 0 || !is_word(text[i - 1])))) {  // not the ' of 1'000
      while (end < text.size() && text[end] != text[i]) {
        end += text[end] == '\\' ? 2U : 1U;
      }
      ++end;
      if (!keep_literals) {
        blank(i + 1, end - 1);
      }
    }
    i = end;
  }
  return out;
}

Findings check_include_direction(const SourceFile& file) {
  Findings findings;
  const auto module = module_of(file.path);
  if (!module) {
    return findings;
  }
  const auto layer = layers().find(*module);
  if (layer == layers().end()) {
    return {fmt::format("{}: module \"{}\" has no row in the table of layers", file.path, *module)};
  }
  for (const Include& include : includes_of(file.text)) {
    const bool is_public = include.path.starts_with("lockstep/");
    if (!include.quoted && !is_public) {
      continue;
    }
    if (include.quoted && (is_public || !include.path.ends_with(".h"))) {
      findings.push_back(
          fmt::format("{}:{}: \"{}\" is spelled <{}> when it is public, \"module/x.h\" when it is internal", file.path,
                      include.line, include.path, include.path));
      continue;
    }
    const auto target = module_of((is_public ? "include/" : "src/") + include.path);
    if (!layers().contains(*target)) {
      findings.push_back(fmt::format("{}:{}: \"{}\" names no module", file.path, include.line, include.path));
    } else if (target != module && !contains(layer->second, *target) && !contains(layer->second, include.path)) {
      findings.push_back(fmt::format("{}:{}: {} may not include {}; it may include: {}", file.path, include.line,
                                     *module, include.path, fmt::join(layer->second, ", ")));
    }
  }
  return findings;
}

Findings check_third_party_includes(const SourceFile& file) {
  Findings findings;
  const auto module = module_of(file.path);
  const bool torch_free = module && contains(kCore, *module);
  for (const Include& include : includes_of(file.text)) {
    const std::string_view path = include.path;
    const std::string_view top = path.substr(0, path.find('/'));
    if (torch_free && contains({"torch", "ATen", "c10", "caffe2"}, top)) {
      findings.push_back(
          fmt::format("{}:{}: <{}> in module {}, which is torch-free", file.path, include.line, path, *module));
    }
    for (const Home& home : header_homes()) {
      if (module && path.starts_with(home.what) && !contains(home.files, file.path)) {
        findings.push_back(
            fmt::format("{}:{}: <{}> may be included only in: {}", file.path, include.line, path,
                        home.files.empty() ? "no file" : fmt::format("{}", fmt::join(home.files, ", "))));
      }
    }
  }
  return findings;
}

Findings check_process_wide_names(const SourceFile& file) {
  Findings findings;
  std::istringstream lines(without_comments(file.text, /*keep_literals=*/false));
  std::string line;
  for (std::size_t number = 1; std::getline(lines, line); ++number) {
    for (const Home& home : name_homes()) {
      if (has_word(line, home.what) && !contains(home.files, file.path)) {
        findings.push_back(
            fmt::format("{}:{}: {} may be used only in: {}", file.path, number, home.what,
                        home.files.empty() ? "no file" : fmt::format("{}", fmt::join(home.files, ", "))));
      }
    }
  }
  return findings;
}

Findings check_public_header(const SourceFile& file) {
  if (!file.text.starts_with("//")) {
    return {fmt::format("{}: does not begin with a comment that says what it is for", file.path)};
  }
  const std::string code = without_comments(file.text, /*keep_literals=*/true);
  const std::size_t first = std::min(code.find_first_not_of(" \n"), code.size());
  if (!std::string_view(code).substr(first).starts_with("#pragma once\n")) {
    return {fmt::format("{}: #pragma once does not follow the first comment", file.path)};
  }
  if (code.find("\nnamespace lockstep {") != std::string::npos) {
    return {fmt::format("{}: its namespace is hidden: namespace [[gnu::visibility(\"default\")]] lockstep", file.path)};
  }
  return {};
}

Findings check_listed(const SourceFile& file, const std::vector<std::string>& lists) {
  const std::string name = std::filesystem::path(file.path).filename().string();
  if (std::ranges::any_of(lists, [&](const std::string& list) { return has_word(list, name); })) {
    return {};
  }
  return {fmt::format("{}: is in no CMakeLists.txt, so nothing builds it", file.path)};
}

namespace {

std::string lower(std::string_view text) {
  std::string out(text);
  std::ranges::transform(out, out.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

std::string without(std::string_view text, std::string_view characters) {
  std::string out(text);
  std::erase_if(out, [&](char c) { return characters.find(c) != std::string_view::npos; });
  return out;
}

std::string trimmed(std::string_view text) {
  const std::size_t begin = std::min(text.find_first_not_of(' '), text.size());
  return std::string(text.substr(begin, text.find_last_not_of(' ') + 1 - begin));
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == separator) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

/// "| a | b |" -> "a", "b"; {} for other lines and for the lines of a table's head.
std::vector<std::string> cells_of(std::string_view line) {
  if (!line.starts_with("| ")) {
    return {};
  }
  std::vector<std::string> cells;
  for (const std::string& cell : split(line.substr(1, line.rfind('|') - 1), '|')) {
    cells.push_back(trimmed(cell));
  }
  return cells;
}

/// The texts between backticks.
std::vector<std::string> quoted_in(std::string_view text) {
  std::vector<std::string> found;
  const std::vector<std::string> parts = split(text, '`');
  for (std::size_t i = 1; i < parts.size(); i += 2) {
    found.push_back(parts[i]);
  }
  return found;
}

/// "class Name final : public Base {" -> "Name"; "" if the line defines no type of a namespace.
std::string defined_type(const std::string& line) {
  std::istringstream words(without(line, "{:"));
  std::string word;
  words >> word;
  const bool is_type = word == "class" || word == "struct" || word == "enum";
  if (!is_type || std::isspace(static_cast<unsigned char>(line.front())) != 0 ||
      (line.ends_with(';') && line.find('{') == std::string::npos)) {
    return {};
  }
  while (words >> word && (word == "class" || word.starts_with('['))) {
  }
  return word;
}

}  // namespace

Glossary parse_glossary(std::string_view text) {
  Glossary glossary;
  std::istringstream lines{std::string(text)};
  std::string section;
  std::string line;
  while (std::getline(lines, line)) {
    if (line.starts_with("## ")) {
      section = line.substr(3);
    }
    const std::vector<std::string> cells = cells_of(line);
    if (cells.size() != 3 || cells.front() == "term" || cells.front() == "do not write") {
      continue;
    }
    if (section == "Terms") {
      glossary.terms.push_back(without(cells.front(), "`"));
    } else if (section == "Forbidden synonyms") {
      for (const std::string& phrase : split(cells.front(), ',')) {
        glossary.synonyms.push_back({lower(trimmed(phrase)), cells[1], quoted_in(cells[2])});
      }
    }
  }
  return glossary;
}

Findings check_synonyms(const SourceFile& file, const std::vector<ForbiddenSynonym>& synonyms) {
  Findings findings;
  std::istringstream lines(lower(file.text));
  std::string line;
  for (std::size_t number = 1; std::getline(lines, line); ++number) {
    for (const ForbiddenSynonym& synonym : synonyms) {
      if (has_word(line, synonym.phrase) && std::ranges::count(synonym.exceptions, file.path) == 0) {
        findings.push_back(fmt::format("{}:{}: \"{}\", write: {}", file.path, number, synonym.phrase, synonym.write));
      }
    }
  }
  return findings;
}

Findings check_types_have_terms(const SourceFile& header, const std::vector<std::string>& terms) {
  Findings findings;
  std::istringstream lines(without_comments(header.text, /*keep_literals=*/false));
  std::string line;
  for (std::size_t number = 1; std::getline(lines, line); ++number) {
    line.erase(line.find_last_not_of(' ') + 1);
    const std::string type = line.empty() ? std::string() : defined_type(line);
    if (!type.empty() && std::ranges::count(terms, type) == 0) {
      findings.push_back(fmt::format("{}:{}: {} is not in docs/glossary.md", header.path, number, type));
    }
  }
  return findings;
}

Findings check_paths(const SourceFile& document, const std::function<bool(const std::string&)>& exists) {
  Findings findings;
  std::istringstream lines(document.text);
  std::string line;
  for (std::size_t number = 1; std::getline(lines, line); ++number) {
    for (const std::string& path : quoted_in(line)) {
      const bool is_path = std::ranges::any_of(Names{"src/", "include/", "tests/", "cmake/", "examples/"},
                                               [&](std::string_view root) { return path.starts_with(root); });
      if (is_path && !exists(path)) {
        findings.push_back(fmt::format("{}:{}: {} does not exist", document.path, number, path));
      }
    }
  }
  return findings;
}

Findings check_gpu_code_is_listed(const SourceFile& file, std::string_view table) {
  const std::string code = without_comments(file.text, /*keep_literals=*/false);
  for (const char* name : {"is_cuda(", "kCUDA", "c10::Event", "getStream", "getNewStream", "StreamGuard", "pin_memory(",
                           "pinned_memory(", "record_stream(", "ProcessGroupNCCL", "query_nvml(", "gpu_processes("}) {
    if (code.find(name) != std::string::npos && table.find("`" + file.path + "`") == std::string_view::npos) {
      return {fmt::format("{}: {} is code for GPUs, and docs/gpu/README.md does not list the file", file.path, name)};
    }
  }
  return {};
}

std::set<std::string> parse_field_names(std::string_view fields) {
  constexpr std::string_view kName = ".name = \"";
  std::set<std::string> names;
  for (std::size_t at = fields.find(kName); at != std::string_view::npos; at = fields.find(kName, at)) {
    at += kName.size();
    names.emplace(fields.substr(at, fields.find('"', at) - at));
  }
  return names;
}

std::set<std::string> parse_foreign_names(std::string_view table) {
  const std::string code = without_comments(table, /*keep_literals=*/true);
  std::set<std::string> names;
  for (std::size_t row = code.find("{\""); row != std::string::npos; row = code.find("{\"", row + 1)) {
    const std::string literals = string_literals(code.substr(row, code.find(',', row) - row));
    std::istringstream words(literals);
    for (std::string word; words >> word;) {
      names.insert(word);
    }
  }
  return names;
}

namespace {

/// The cells of a row of a Markdown table, without the outer ones; "\|" does not end a cell. {}: no row.
std::vector<std::string> table_cells(const std::string& line) {
  std::vector<std::string> cells;
  if (!line.starts_with('|')) {
    return cells;
  }
  cells.emplace_back();
  for (std::size_t i = 1; i < line.size(); ++i) {
    if (line[i] == '|' && line[i - 1] != '\\') {
      cells.emplace_back();
    } else {
      cells.back() += line[i];
    }
  }
  cells.pop_back();
  return cells;
}

/// The texts between backticks.
std::vector<std::string> code_spans(const std::string& text) {
  std::vector<std::string> spans;
  for (std::size_t begin = text.find('`'); begin != std::string::npos; begin = text.find('`', begin)) {
    const std::size_t end = text.find('`', begin + 1);
    if (end == std::string::npos) {
      break;
    }
    spans.push_back(text.substr(begin + 1, end - begin - 1));
    begin = end + 1;
  }
  return spans;
}

/// The names after "--" at the beginning of words. A negation counts as the name: "--no-report.csv".
std::vector<std::string> flag_names(const std::string& text) {
  constexpr std::string_view kCharacters = "abcdefghijklmnopqrstuvwxyz0123456789_.-";
  std::vector<std::string> names;
  for (std::size_t at = text.find("--"); at != std::string::npos; at = text.find("--", at + 2)) {
    const bool begins_a_word = at == 0 || std::string_view(" `([|,").find(text[at - 1]) != std::string_view::npos;
    std::string name = text.substr(at + 2, text.find_first_not_of(kCharacters, at + 2) - at - 2);
    name = name.substr(0, name.find_last_not_of(".-") + 1);
    if (name.starts_with("no-")) {
      name.erase(0, 3);
    }
    if (begins_a_word && !name.empty()) {
      names.push_back(name);
    }
  }
  return names;
}

}  // namespace

Findings check_settings(const SourceFile& document, const std::set<std::string>& fields,
                        const std::set<std::string>& others) {
  constexpr std::string_view kPlaceholder = "section.key";
  std::set<std::string> sections;
  for (const std::string& field : fields) {
    if (const auto dot = field.find('.'); dot != std::string::npos) {
      sections.insert(field.substr(0, dot));
    }
  }
  Findings findings;
  std::istringstream lines(document.text);
  std::string line;
  std::size_t here = 0;  // column of the table; 0: it has none
  for (std::size_t number = 1; std::getline(lines, line); ++number) {
    const auto refuse = [&](const std::string& name) {
      findings.push_back(fmt::format("{}:{}: {} is no setting", document.path, number, name));
    };
    for (const std::string& name : flag_names(line)) {
      if (name.find('.') != std::string::npos && name != kPlaceholder && !fields.contains(name)) {
        refuse("--" + name);
      }
    }
    for (const std::string& span : code_spans(line)) {
      constexpr std::string_view kProgram = "./train ";
      if (const auto program = span.find(kProgram); program != std::string::npos) {
        for (const std::string& name : flag_names(span.substr(program))) {
          if (name.find('.') == std::string::npos && !fields.contains(name) && !others.contains(name)) {
            refuse("--" + name);
          }
        }
      }
      const auto dot = span.find('.');
      const bool is_a_name = span.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_.") == std::string::npos;
      const bool is_a_file = span.ends_with(".safetensors");
      if (is_a_name && !is_a_file && sections.contains(span.substr(0, dot)) && dot != std::string::npos &&
          !fields.contains(span)) {
        refuse(span);
      }
    }
    const auto cells = table_cells(line);
    if (cells.empty()) {
      here = 0;
    } else if (const auto found = std::find(cells.begin(), cells.end(), " here "); found != cells.end()) {
      here = static_cast<std::size_t>(found - cells.begin());
    } else if (here != 0 && here < cells.size()) {
      for (const std::string& span : code_spans(cells[here])) {
        for (const std::string& name : span.starts_with("--") ? flag_names(span) : Findings()) {
          if (!fields.contains(name) && !others.contains(name)) {
            refuse("--" + name);
          }
        }
      }
    }
  }
  return findings;
}

Findings check_names_are_named(const SourceFile& document, const std::set<std::string>& names) {
  std::string code;
  std::istringstream lines(document.text);
  for (std::string line; std::getline(lines, line);) {
    code += fmt::format(" {} ", fmt::join(code_spans(line), " "));
  }
  code = lower(code);
  std::ranges::replace(code, '-', '_');
  Findings findings;
  for (const std::string& whole : names) {
    const std::string name = whole.substr(whole.rfind('.') + 1);  // npos + 1 is 0
    if (!has_word(code, name) && !has_word(code, "__" + name)) {
      findings.push_back(fmt::format("{}: {} is not named", document.path, whole));
    }
  }
  return findings;
}

std::vector<Fields> parse_fields(const SourceFile& header) {
  std::vector<Fields> structs;
  std::vector<Fields> open;
  std::istringstream lines(without_comments(header.text, /*keep_literals=*/false));
  for (std::string whole; std::getline(lines, whole);) {
    const std::string line = trimmed(whole);
    const bool is_type = line.starts_with("struct ") || line.starts_with("class ") || line.starts_with("enum ");
    if (is_type && line.ends_with('{')) {
      open.emplace_back();
    } else if (line == "};" && !open.empty()) {
      structs.push_back(std::move(open.back()));
      open.pop_back();
    } else if (line.ends_with(';') && !open.empty()) {
      const std::string declared = trimmed(line.substr(0, line.find_first_of("={;")));
      open.back().push_back(declared.substr(declared.rfind(' ') + 1));  // npos + 1 is 0
    }
  }
  return structs;
}

Findings check_initializers(const SourceFile& document, const std::vector<Fields>& structs) {
  Findings findings;
  std::istringstream lines(document.text);
  std::string line;
  for (std::size_t number = 1; std::getline(lines, line); ++number) {
    for (const std::string& span : code_spans(line)) {
      for (auto begin = span.find("{."); begin != std::string::npos; begin = span.find("{.", begin + 1)) {
        Fields names;
        for (const std::string& part :
             split(span.substr(begin + 1, span.find_first_of("{}", begin + 1) - begin - 1), ',')) {
          const std::string field = trimmed(part);
          if (field.starts_with('.')) {
            names.push_back(field.substr(1, field.find_first_of(" =") - 1));
          }
        }
        const auto has_them_in_order = [&](const Fields& fields) {
          auto at = fields.begin();
          return std::ranges::all_of(names, [&](const std::string& name) {
            at = std::find(at, fields.end(), name);
            return at != fields.end();
          });
        };
        if (names.size() > 1 && std::ranges::none_of(structs, has_them_in_order)) {
          findings.push_back(fmt::format("{}:{}: no struct has the fields {} in this order", document.path, number,
                                         fmt::join(names, ", ")));
        }
      }
    }
  }
  return findings;
}

std::string string_literals(std::string_view code) {
  const std::string text = without_comments(code, /*keep_literals=*/true);
  std::string all;
  bool follows_a_literal = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool is_a_character = text[i] == '\'' && text.substr(i + 1, 2) == "\"'";
    if (is_a_character) {
      i += 2;
    } else if (text.compare(i, 2, "R\"") == 0) {
      const std::size_t end = end_of_raw_literal(text, i);
      all += '\n' + text.substr(i, end - i);
      i = end - 1;
    } else if (text[i] == '"') {
      if (!follows_a_literal) {
        all += '\n';
      }
      for (++i; i < text.size() && text[i] != '"'; ++i) {
        if (text[i] == '\\') {
          ++i;
        }
        all += text[i];
      }
      follows_a_literal = true;
      continue;
    }
    follows_a_literal = follows_a_literal && std::isspace(static_cast<unsigned char>(text[i])) != 0;
  }
  return all;
}

namespace {

constexpr std::string_view kSymptoms = " what you see ";
constexpr std::string_view kMessages = " message ";
constexpr std::size_t kShortestText = 6;

struct TableRow {
  std::size_t line = 0;
  std::vector<std::string> cells{};
};

/// The rows of the tables with this first column.
std::vector<TableRow> rows_with(std::string_view first_column, const SourceFile& document) {
  std::vector<TableRow> rows;
  std::istringstream lines(document.text);
  std::string line;
  bool is_wanted = false;
  for (std::size_t number = 1; std::getline(lines, line); ++number) {
    auto cells = table_cells(line);
    if (cells.empty()) {
      is_wanted = false;
    } else if (cells.front() == first_column) {
      is_wanted = true;
    } else if (is_wanted && !cells.front().starts_with("---")) {
      rows.push_back({number, std::move(cells)});
    }
  }
  return rows;
}

/// The parts of a quote of the program between "...".
std::vector<std::string> parts_of_quote(const std::string& quote) {
  constexpr std::string_view kAnything = "...";
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin < quote.size();) {
    const std::size_t end = std::min(quote.find(kAnything, begin), quote.size());
    parts.push_back(quote.substr(begin, end - begin));
    begin = end + kAnything.size();
  }
  return parts;
}

/// The texts of a quote of the program.
std::vector<std::string> texts_of_quote(const std::string& quote) {
  std::vector<std::string> texts = parts_of_quote(quote);
  std::erase_if(texts, [](const std::string& text) {
    return text.size() < kShortestText || text.starts_with("--") || text.starts_with(".");
  });
  return texts;
}

bool is_placeholder(std::string_view word) {
  return std::ranges::all_of(word, [](char c) { return c >= 'A' && c <= 'Z'; });
}

/// The texts of a quote in which words of capital letters stand for what differs: without a setting before them, and
/// without punctuation at their ends.
std::vector<std::string> texts_of_message(const std::string& quote) {
  constexpr std::string_view kPunctuation = " .,:;()[]'\"";
  std::vector<std::string> texts;
  const auto add = [&](std::string_view text) {
    const std::size_t begin = std::min(text.find_first_not_of(kPunctuation), text.size());
    text = text.substr(begin, text.find_last_not_of(kPunctuation) + 1 - begin);
    if (text.size() >= kShortestText) {
      texts.emplace_back(text);
    }
  };
  for (const std::string& part : parts_of_quote(quote)) {
    std::string_view rest = part;
    if (rest.starts_with("--")) {
      rest.remove_prefix(std::min(rest.find(": "), rest.size()));
    }
    std::size_t text = 0;
    for (std::size_t begin = 0; begin < rest.size();) {
      const auto word_end = std::find_if_not(rest.begin() + static_cast<std::ptrdiff_t>(begin), rest.end(), is_word);
      const auto end = static_cast<std::size_t>(word_end - rest.begin());
      if (end > begin && is_placeholder(rest.substr(begin, end - begin))) {
        add(rest.substr(text, begin - text));
        text = end;
      }
      begin = std::max(end, begin + 1);
    }
    add(rest.substr(text));
  }
  return texts;
}

bool has_text(std::string_view literals, std::string_view text) {
  return text.size() < kShortestText || literals.find(text) != std::string_view::npos;
}

/// Messages are put together from literals at these places.
bool has_message(std::string_view literals, std::string_view text) {
  if (has_text(literals, text)) {
    return true;
  }
  for (const std::string_view joint : {"; ", ": ", "cannot "}) {
    if (const std::size_t at = text.find(joint); at != std::string_view::npos) {
      return has_message(literals, text.substr(0, at)) && has_message(literals, text.substr(at + joint.size()));
    }
  }
  return false;
}

Findings check_texts(const SourceFile& document, std::string_view first_column, std::string_view literals,
                     std::vector<std::string> (*texts_of)(const std::string& quote),
                     bool (*has)(std::string_view literals, std::string_view text)) {
  Findings findings;
  for (const auto& [line, cells] : rows_with(first_column, document)) {
    for (const std::string& quote : code_spans(cells.front())) {
      for (const std::string& text : texts_of(quote)) {
        if (!has(literals, text)) {
          findings.push_back(fmt::format("{}:{}: the program has no text \"{}\"", document.path, line, text));
        }
      }
    }
  }
  return findings;
}

}  // namespace

Findings check_quotes(const SourceFile& document, std::string_view literals) {
  return check_texts(document, kSymptoms, literals, texts_of_quote, has_text);
}

Findings check_messages(const SourceFile& document, std::string_view literals) {
  return check_texts(document, kMessages, literals, texts_of_message, has_message);
}

namespace {

/// The lines with code, without comments.
std::string code_lines(std::string_view text) {
  std::string code;
  std::istringstream lines(without_comments(text, /*keep_literals=*/true));
  for (std::string line; std::getline(lines, line);) {
    line.erase(line.find_last_not_of(' ') + 1);
    code += line.empty() ? line : line + '\n';
  }
  return code;
}

}  // namespace

Findings check_first_diff(const SourceFile& page, const SourceFile& before, const SourceFile& after) {
  constexpr std::string_view kBegin = "\n```diff\n";
  const std::size_t found = page.text.find(kBegin);
  if (found == std::string::npos) {
    return {page.path + ": found no block \"diff\""};
  }
  const std::size_t begin = found + kBegin.size();
  std::istringstream block(page.text.substr(begin, page.text.find("\n```\n", begin) - begin));
  std::string removed;
  std::string added;
  Findings findings;
  for (std::string line; std::getline(block, line);) {
    if (!line.starts_with('-') && !line.starts_with('+')) {
      continue;
    }
    const bool is_added = line.starts_with('+');
    const SourceFile& file = is_added ? after : before;
    const std::string code = line.substr(1) + '\n';
    (is_added ? added : removed) += code;
    if (file.text.find('\n' + code) == std::string::npos) {
      findings.push_back(fmt::format("{}: {} has no line \"{}\"", page.path, file.path, line.substr(1)));
    }
  }
  std::string changed = code_lines(before.text);
  const std::string old = code_lines(removed);
  if (const std::size_t at = changed.find(old); !old.empty() && at != std::string::npos) {
    changed.replace(at, old.size(), code_lines(added));
  }
  if (changed != code_lines(after.text)) {
    findings.push_back(
        fmt::format("{}: {} and {} differ in other lines than its diff", page.path, before.path, after.path));
  }
  return findings;
}

std::set<std::string> parse_test_names(const SourceFile& file) {
  std::set<std::string> names;
  if (!file.path.ends_with(".cpp")) {
    constexpr std::string_view kName = "add_test(NAME ";
    for (std::size_t at = file.text.find(kName); at != std::string::npos; at = file.text.find(kName, at)) {
      at += kName.size();
      names.insert(file.text.substr(at, file.text.find_first_of(" \n)", at) - at));
    }
    return names;
  }
  const std::string code = '\n' + without_comments(file.text, /*keep_literals=*/false);
  const auto next_word = [&](std::size_t at) {
    const std::size_t begin = code.find_first_not_of(" \n", at);
    return code.substr(begin, code.find_first_of(" ,)\n", begin) - begin);
  };
  static const std::map<std::string_view, Names> kMacros = {
      {"\nTEST(", {""}}, {"\nTEST_F(", {""}}, {"\nTEST_P(", {""}}, {"\nLOCKSTEP_DEVICE_TEST(", {"OnCpu", "OnGpu"}}};
  for (const auto& [macro, suite_ends] : kMacros) {
    for (std::size_t at = code.find(macro); at != std::string::npos; at = code.find(macro, at)) {
      at += macro.size();
      for (const std::string_view end : suite_ends) {
        names.insert(fmt::format("{}{}.{}", next_word(at), end, next_word(code.find(',', at) + 1)));
      }
    }
  }
  return names;
}

Findings check_tests(const SourceFile& document, const std::set<std::string>& tests) {
  Findings findings;
  std::istringstream lines(document.text);
  std::string line;
  std::size_t column = 0;  // 0: the table has no such column
  for (std::size_t number = 1; std::getline(lines, line); ++number) {
    const auto cells = table_cells(line);
    if (cells.empty()) {
      column = 0;
    } else if (const auto found = std::find(cells.begin(), cells.end(), " test "); found != cells.end()) {
      column = static_cast<std::size_t>(found - cells.begin());
    } else if (column != 0 && column < cells.size() && !cells[column].starts_with("---")) {
      const auto named = code_spans(cells[column]);
      if (named.empty()) {
        findings.push_back(fmt::format("{}:{}: the row names no test", document.path, number));
      }
      for (const std::string& test : named) {
        if (!tests.contains(test)) {
          findings.push_back(fmt::format("{}:{}: {} is no test", document.path, number, test));
        }
      }
    }
  }
  return findings;
}

Findings check_symptoms(const SourceFile& page, const SourceFile& list,
                        const std::map<std::string, std::string_view>& tests) {
  constexpr std::string_view kNone = " no test: ";
  Findings findings;
  std::set<std::string> symptoms;
  for (const auto& row : rows_with(kSymptoms, page)) {
    symptoms.insert(row.cells.front());
  }
  for (const auto& [line, cells] : rows_with(kSymptoms, list)) {
    const auto refuse = [&, number = line](const std::string& why) {
      findings.push_back(fmt::format("{}:{}: {}", list.path, number, why));
    };
    if (symptoms.erase(cells.front()) == 0) {
      refuse(page.path + " has no such row, or it is listed twice");
    }
    const std::string& tested_by = cells.size() == 2 ? cells[1] : "";
    if (tested_by.starts_with(kNone) && tested_by.size() > kNone.size()) {
      continue;
    }
    std::vector<std::string_view> texts_of_tests;
    for (const std::string& test : code_spans(tested_by)) {
      if (const auto found = tests.find(test); found != tests.end()) {
        texts_of_tests.push_back(found->second);
      } else {
        refuse(test + " is no test");
      }
    }
    if (texts_of_tests.empty()) {
      refuse("the row has neither a test nor \"no test: REASON\"");
    }
    for (const std::string& quote : code_spans(cells.front())) {
      auto texts = texts_of_quote(quote);
      std::erase_if(texts, [](const std::string& text) { return text.find(' ') == text.npos; });  // a name, no message
      const auto longest = std::ranges::max_element(texts, {}, &std::string::size);
      if (longest == texts.end()) {
        continue;
      }
      const std::size_t begin = longest->find_first_not_of(" ,:");
      const std::string text = longest->substr(begin, longest->find_last_not_of(" ,:") + 1 - begin);
      if (std::ranges::none_of(texts_of_tests, [&](std::string_view all) { return all.find(text) != all.npos; })) {
        refuse(fmt::format("no file of its tests has the text \"{}\"", text));
      }
    }
  }
  for (const std::string& symptom : symptoms) {
    findings.push_back(fmt::format("{} does not list the row |{}| of {}", list.path, symptom, page.path));
  }
  return findings;
}

Findings check_links(const SourceFile& document, const std::function<bool(const std::string&)>& exists) {
  Findings findings;
  const auto folder = std::filesystem::path(document.path).parent_path();
  std::istringstream lines(document.text);
  std::string line;
  bool in_code = false;
  for (std::size_t number = 1; std::getline(lines, line); ++number) {
    if (line.starts_with("```")) {
      in_code = !in_code;
    }
    for (std::size_t at = line.find("]("); !in_code && at != std::string::npos; at = line.find("](", at + 2)) {
      const std::string link = line.substr(at + 2, line.find_first_of(") ", at + 2) - at - 2);
      const std::string path = link.substr(0, link.find('#'));
      const bool elsewhere = link.find("://") != std::string::npos || link.starts_with("mailto:");
      if (!elsewhere && !path.empty() && !exists((folder / path).lexically_normal().string())) {
        findings.push_back(fmt::format("{}:{}: link to {}, which does not exist", document.path, number, path));
      }
    }
  }
  return findings;
}

}  // namespace lockstep::structure
