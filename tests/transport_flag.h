// The transport of a test's worlds, chosen on its command line:
//
//   bazel run //comm/world:world_test -- --transport=ofi --provider='net;ofi_rxm'
//
// The flags set LOCKSTEP_TRANSPORT and LOCKSTEP_OFI_PROVIDER, for this process and the ranks that it starts, so they reach
// the worlds whose options leave the transport open. //tests:transport_main and //tests:processes bring a main() that
// knows them.

#ifndef TESTS_TRANSPORT_FLAG_H_
#define TESTS_TRANSPORT_FLAG_H_

#include <string>

namespace lockstep {

// Takes the flags out of the arguments. To be called before the tests are registered: which there are may depend on them.
void TakeTransportFlags(int* argc, char** argv);

// What was chosen, there or in the environment; empty: nothing.
std::string ChosenTransport();

}  // namespace lockstep

#endif  // TESTS_TRANSPORT_FLAG_H_
