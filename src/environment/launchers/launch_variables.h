// What the readers of launch variables share. Torch-free.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <lockstep/base/error.h>
#include <lockstep/base/variables.h>
#include <lockstep/environment/identity.h>

#include "environment/text_file.h"

namespace lockstep {

/// Reads variables strictly, remembers which ones, and collects everything that is wrong instead of stopping at the
/// first.
class VariableReader {
 public:
  static constexpr std::int64_t kMaxInt = std::numeric_limits<int>::max();
  /// Stands for a number that was refused, so that the checks that follow do not complain about it again.
  static constexpr int kRefused = 0;

  VariableReader(const Variables& variables, const ReadText& files) : variables_(variables), files_(files) {}

  bool has(const char* name) const { return variables_.has(name); }
  /// Looked at, not relied on: it does not appear among the names.
  std::optional<std::string> peek(const char* name) const { return variables_.get(name); }

  /// nullopt: not set, or not a whole number from `min` to `max` (then a problem).
  std::optional<int> number(const char* name, std::int64_t min, std::int64_t max = kMaxInt);
  std::optional<std::string> text(const char* name);  ///< an empty one is a problem
  std::optional<std::string> host(const char* name);  ///< a name or an address

  /// Must be there; kRefused and "" after a problem.
  int required_number(const char* name, std::int64_t min, std::string_view meaning, std::string_view hint = {});
  std::string required_text(const char* name, std::string_view meaning, std::string_view hint = {});

  /// A problem where a `value` that begins at 0 does not lie below its limit.
  void check_below(const char* name, int value, const char* limit_name, int limit);

  std::optional<std::string> file(const std::string& path) const { return files_(path); }
  void missing(const char* name, std::string_view meaning, std::string_view hint = {});
  void problem(std::string what, std::string hint = {}) { problems_.push_back({std::move(what), std::move(hint)}); }

  const std::vector<std::string>& names() const noexcept { return names_; }
  const std::vector<Problem>& problems() const noexcept { return problems_; }

 private:
  std::optional<std::string> noted(const char* name);

  const Variables& variables_;
  const ReadText& files_;
  std::vector<std::string> names_{};
  std::vector<Problem> problems_{};
};

/// detect_identity with other files than this machine's.
std::optional<Identity> detect_identity(const Variables& variables, const ReadText& files);

/// Whether `text` can be the name or address of a machine.
bool is_host(std::string_view text);

/// A port that all ranks of one launch derive alike and another launch most likely not: from 20000 to 29999, below
/// those that the kernel gives away.
int derived_port(std::string_view launch);

/// MASTER_ADDR and MASTER_PORT, both needed unless the rank is alone.
void read_master(VariableReader& reader, Identity& identity);

// One per launcher. nullopt: not this one.
std::optional<Identity> read_torchrun(VariableReader& reader);  // ... and our own
std::optional<Identity> read_plain(VariableReader& reader);     // RANK and WORLD_SIZE of one process per node
std::optional<Identity> read_open_mpi(VariableReader& reader);
std::optional<Identity> read_hydra(VariableReader& reader);
std::optional<Identity> read_mvapich2(VariableReader& reader);
std::optional<Identity> read_lsf(VariableReader& reader);
std::optional<Identity> read_slurm_step(VariableReader& reader);
std::optional<Identity> read_sagemaker(VariableReader& reader);
// Nobody launched this process, and that looks like a mistake.
std::optional<Identity> read_slurm_allocation(VariableReader& reader);
std::optional<Identity> read_torchrun_settings(VariableReader& reader);

/// SageMaker's hosts, sorted; empty where it says nothing, or after a problem.
std::vector<std::string> read_sagemaker_hosts(VariableReader& reader);

}  // namespace lockstep
