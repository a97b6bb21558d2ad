// SPDX-License-Identifier: Apache-2.0
//
// Part of calls: how far launches run ahead of the device.

// Launches `count` times what takes so long on average, and answers the most device
// time, in microseconds, that was under way at once. How: 0 graphs that were never
// launched before, 1 one kernel that is a hundred times as long every other time, 2
// one kernel with more and more blocks, for the time of which it is told, 3 one kernel that
// is a hundred times as long from the middle on: of what the last quarter launches, when
// each of the quarter before has been waited for, which is more than are paid for together.
static int ahead(int how, long microseconds, int count) {
    static CUevent through[1000];
    static long length[1000];
    long most = 0;
    unsigned random = 1;
    for (int i = 0; i < count && i < 1000; i++) {
        int result = cuEventCreate(&through[i], CU_EVENT_DEFAULT);
        random = random * 1664525 + 1013904223;
        length[i] = how == 3 && i < count / 2 ? microseconds / 100 : how != 1 ? microseconds : random >> 31 != 0 ? microseconds * 199 / 100 : microseconds / 100;
        unsigned long long ns = (unsigned long long)length[i] * 1000;
        void *params[] = {&ns};
        if (result == 0 && how == 0)
            result = capture(1, length[i], 1);
        if (result == 0)
            result = load_kernel();
        if (result == 0)
            result = how == 0 ? (int)cuGraphLaunch(exec[1], stream[1])
                              : (int)cuLaunchKernel(kernel, how == 2 ? 1u << i : 1, 1, 1, 1, 1, 1, 0, stream[1], params, NULL);
        if (result == 0)
            result = cuEventRecord(through[i], stream[1]);
        if (result == 0 && how == 3 && i >= count / 2 && i < count - count / 4)
            result = cuStreamSynchronize(stream[1]);
        if (result != 0)
            return -result;
        long under_way = 0;
        for (int j = i; j >= 0 && cuEventQuery(through[j]) == CUDA_ERROR_NOT_READY; j--)
            under_way += length[j];
        most = under_way > most && (how != 3 || i >= count - count / 4) ? under_way : most;
    }
    return (int)most;
}
