// Runs recorded launches (tests/emulated/record.rs) in several orders of threads, with buffers of exactly the recorded
// sizes, for sanitizers to watch. Fails when orders differ in a result, or a kernel was never launched.
//
// usage: replay FILE...
#include "emu.h"
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

extern "C" int kin_infer_emulator_launch(const char*, const uint*, const uint*, void* const*, uint, const void*, size_t, uint);
extern "C" const char* kin_infer_emulator_kernel(uint);

struct Reader {
    FILE* file;
    bool whole(void* to, size_t bytes) { return fread(to, 1, bytes, file) == bytes; }
    uint word() {
        uint value = 0;
        if (!whole(&value, 4)) fprintf(stderr, "replay: the file ends early\n"), exit(2);
        return value;
    }
    std::vector<char> bytes() {
        std::vector<char> result(word());
        if (!whole(result.data(), result.size())) fprintf(stderr, "replay: the file ends early\n"), exit(2);
        return result;
    }
};

int main(int count, char** files) {
    std::map<std::string, uint> launched;
    for (int f = 1; f < count; f++) {
        Reader reader = {fopen(files[f], "rb")};
        if (!reader.file) return fprintf(stderr, "replay: cannot open %s\n", files[f]), 2;
        uint length;
        while (reader.whole(&length, 4)) {
            std::string kernel(length, ' ');
            if (!reader.whole(&kernel[0], length)) return 2;
            uint shape[6];
            for (uint& size : shape) size = reader.word();
            const std::vector<char> args = reader.bytes();
            std::vector<std::vector<char>> contents(reader.word());
            for (auto& buffer : contents) buffer = reader.bytes();
            std::vector<std::vector<char>> results; // of the first order
            for (uint order : {0u, 1u, 5u}) {
                std::vector<void*> buffers;
                for (const auto& content : contents) {
                    buffers.push_back(malloc(content.size()));
                    memcpy(buffers.back(), content.data(), content.size());
                }
                const int refused = kin_infer_emulator_launch(kernel.c_str(), shape, shape + 3, buffers.data(),
                                                              uint(buffers.size()), args.data(), args.size(), order);
                for (size_t i = 0; i < buffers.size(); i++) {
                    const char* result = static_cast<const char*>(buffers[i]);
                    if (order == 0) results.emplace_back(result, result + contents[i].size());
                    else if (memcmp(result, results[i].data(), results[i].size()) != 0)
                        return fprintf(stderr, "replay: %s depends on the order of threads\n", kernel.c_str()), 1;
                    free(buffers[i]);
                }
                if (refused) return fprintf(stderr, "replay: %s is refused: %d\n", kernel.c_str(), refused), 1;
            }
            launched[kernel]++;
        }
        fclose(reader.file);
    }
    uint missing = 0, launches = 0, kernels = 0;
    for (uint i = 0; const char* kernel = kin_infer_emulator_kernel(i); i++, kernels++) {
        launches += launched[kernel];
        if (launched[kernel] == 0) fprintf(stderr, "replay: no launch of %s\n", kernel), missing++;
    }
    printf("%u launches of %u kernels, each in 3 orders of threads\n", launches, kernels);
    return missing != 0;
}
