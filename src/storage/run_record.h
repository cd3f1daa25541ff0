// run.json: which run a directory contains, which program trains it, and which launch trained it last. Torch-free.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <lockstep/environment/launch_name.h>

namespace lockstep {

struct RunRecord {
  std::string id{};           ///< of the run, random
  std::string program{};      ///< file name of the program; "": not known
  std::string model{};        ///< fingerprint of the model; "": no training has started
  std::int64_t launches = 0;  ///< number of launches that trained it; the last one is:
  LaunchName launch{};
};

std::string to_json(const RunRecord& record);
/// `where` names the file in errors. Throws: CheckpointError.
RunRecord parse_run_record(std::string_view json, const std::string& where);

/// The request of a launch for a run directory.
struct RunRequest {
  bool fresh = false;
  std::string program{};
  LaunchName launch{};
};

/// The content of one run directory. With checkpoint.per_node every node has one.
struct RunFound {
  std::string directory{};
  bool has_run = false;  ///< files of a run, with or without run.json
  std::string json{};    ///< content of run.json; "": there is none
};

struct RunDecision {
  RunRecord record{};
  bool set_aside = false;       ///< the directories contain an old run, which --fresh renames
  bool trained_before = false;  ///< an earlier attempt of this launch has trained here
};

/// Pure. Throws: CheckpointError for a run of another program, a damaged run.json, or directories of two runs.
RunDecision decide_run(const RunRequest& request, const std::vector<RunFound>& found);

}  // namespace lockstep
