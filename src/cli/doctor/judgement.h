// The findings of one group, while they are collected. Torch-free.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/doctor/findings.h"

namespace lockstep {

/// Collects the findings of one group.
class Judgement {
 public:
  Judgement(std::vector<Finding>& findings, std::string_view group) : findings_(findings), group_(group) {}

  void ok(std::string subject, std::string found) { add(FindingLevel::ok, std::move(subject), std::move(found), {}); }
  void warn(std::string subject, std::string found, std::string fix) {
    add(FindingLevel::warning, std::move(subject), std::move(found), std::move(fix));
  }
  void fail(std::string subject, std::string found, std::string fix) {
    add(FindingLevel::failure, std::move(subject), std::move(found), std::move(fix));
  }
  void add(FindingLevel level, std::string subject, std::string found, std::string fix) {
    findings_.push_back({.level = level,
                         .group = std::string(group_),
                         .subject = std::move(subject),
                         .found = std::move(found),
                         .fix = std::move(fix)});
  }

 private:
  std::vector<Finding>& findings_;
  std::string_view group_;
};

void judge_gpus(const Facts& facts, Judgement judgement);
void judge_network(const Facts& facts, Judgement judgement);

}  // namespace lockstep
