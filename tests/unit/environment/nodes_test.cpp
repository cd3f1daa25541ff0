#include "environment/nodes.h"

#include <gmock/gmock.h>

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(Nodes, AreWhatTheLauncherSays) {
  const std::vector<NodeClaim> ranks{{0, 0, "a"}, {1, 0, "a"}, {0, 1, "b"}};
  EXPECT_THAT(place_on_nodes(ranks), ElementsAre(NodePlace{0, 2, 2}, NodePlace{0, 2, 2}, NodePlace{1, 2, 1}));
}

TEST(Nodes, AreHostsWhereTheLauncherDoesNotSay) {
  const std::vector<NodeClaim> block{{0, -1, "a"}, {1, -1, "a"}, {0, -1, "b"}};
  EXPECT_THAT(place_on_nodes(block), ElementsAre(NodePlace{0, 2, 2}, NodePlace{0, 2, 2}, NodePlace{1, 2, 1}));
  const std::vector<NodeClaim> cyclic{{0, -1, "a"}, {0, -1, "b"}, {0, -1, "c"}, {1, -1, "a"}, {1, -1, "c"}};
  EXPECT_THAT(place_on_nodes(cyclic), ElementsAre(NodePlace{0, 3, 2}, NodePlace{1, 3, 1}, NodePlace{2, 3, 2},
                                                  NodePlace{0, 3, 2}, NodePlace{2, 3, 2}));
}

TEST(Nodes, MayShareAHost) {
  const std::vector<NodeClaim> ranks{{0, -1, "a"}, {1, -1, "a"}, {0, -1, "a"}};
  EXPECT_THAT(place_on_nodes(ranks), ElementsAre(NodePlace{0, 2, 2}, NodePlace{0, 2, 2}, NodePlace{1, 2, 1}));
}

TEST(Nodes, AreFoundByHostWhereOneRankDoesNotKnow) {
  const std::vector<NodeClaim> ranks{{0, 5, "a"}, {0, -1, "b"}};
  EXPECT_THAT(place_on_nodes(ranks), ElementsAre(NodePlace{0, 2, 1}, NodePlace{1, 2, 1}));
  EXPECT_THAT(place_on_nodes({}), IsEmpty());
}

}  // namespace
}  // namespace lockstep
