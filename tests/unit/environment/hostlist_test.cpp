#include "environment/launchers/hostlist.h"

#include <gmock/gmock.h>

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

TEST(Hostlist, ExpandsSlurmsLists) {
  const std::pair<const char*, std::vector<std::string>> cases[] = {
      {"n1", {"n1"}},
      {"n[1-3]", {"n1", "n2", "n3"}},
      {"n[1,3]", {"n1", "n3"}},
      {"n[1-3,7]", {"n1", "n2", "n3", "n7"}},
      {"gpu[001-003,007],login1,rack[1-2]n[1-2]",
       {"gpu001", "gpu002", "gpu003", "gpu007", "login1", "rack1n1", "rack1n2", "rack2n1", "rack2n2"}},
      {"n[08-11]", {"n08", "n09", "n10", "n11"}},
      {"n[1],m[2-4]", {"n1", "m2", "m3", "m4"}},
      {"a[1-2]-ib.example.org", {"a1-ib.example.org", "a2-ib.example.org"}},
      {"127.0.0.1", {"127.0.0.1"}},
      {"1.2.3.[089, 100-102]", {"1.2.3.089", "1.2.3.100", "1.2.3.101", "1.2.3.102"}},
      {"host[5-7,1]", {"host5", "host6", "host7", "host1"}},
      {"alpha beta gamma", {"alpha", "beta", "gamma"}},
      {"alpha, host[5-6], gamma", {"alpha", "host5", "host6", "gamma"}},
      {"alpha[3,1], beta", {"alpha3", "alpha1", "beta"}},
      {"[1-2]", {"1", "2"}},
  };
  for (const auto& [text, hosts] : cases) {
    const Hostlist list = parse_hostlist(text);
    EXPECT_EQ(list.problem, "") << text;
    EXPECT_EQ(list.hosts, hosts) << text;
  }
}

TEST(Hostlist, RejectsInvalidLists) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "contains no host"},
      {" , ", "contains no host"},
      {"n[1-3", "not closed"},
      {"n[", "not closed"},
      {"n1]", "is not allowed in a host name"},
      {"n[]", "an invalid range"},
      {"n[1-]", "an invalid range"},
      {"n[-1]", "an invalid range"},
      {"n[3-1]", "an invalid range"},
      {"n[1-2-3]", "an invalid range"},
      {"n[a]", "an invalid range"},
      {"n[1,,2]", "an invalid range"},
      {"n[[1]]", "an invalid range"},
      {"n[+1]", "an invalid range"},
      {"n[0x1]", "an invalid range"},
      {"n;reboot", "is not allowed in a host name"},
      {"$(id)", "is not allowed in a host name"},
      {"n\n1", "is not allowed in a host name"},
      {"n[1-2/3]", "an invalid range"},
      {"n[9999999999999999999]", "an invalid range"},
  };
  for (const auto& [text, problem] : cases) {
    const Hostlist list = parse_hostlist(text);
    EXPECT_THAT(list.problem, HasSubstr(problem)) << text;
    EXPECT_THAT(list.hosts, IsEmpty()) << text;
  }
}

TEST(Hostlist, IsBounded) {
  EXPECT_THAT(parse_hostlist("n[1-65536]").hosts, SizeIs(kMaxHosts));
  for (const std::string& text : {std::string("n[1-65537]"), std::string("n[0-999999999999999999]"),
                                  std::string("a[1-60000],b[1-60000]"), std::string("a[1-300]b[1-300]"),
                                  std::string("a[1-60000,1-60000]"), std::string("a[1-99]b[1-99]c[1-99]d[1-99]")}) {
    EXPECT_THAT(parse_hostlist(text).problem, HasSubstr("more than 65536 hosts")) << text;
  }
  EXPECT_THAT(parse_hostlist(std::string(100000, 'n')).problem, HasSubstr("too long"));
  EXPECT_THAT(parse_hostlist("n[1-60000]" + std::string(100000, 'n')).problem, HasSubstr("too long"));
}

}  // namespace
}  // namespace lockstep
