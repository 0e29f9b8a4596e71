/* vdec: toy clip decoder. usage: vdec in.clip > frames.raw ; diagnostics on stderr */
#include <stdio.h>
#include <stdlib.h>
int main(int argc, char **argv) {
    FILE *f = fopen(argv[1], "rb");
    if (!f) { fprintf(stderr, "%s: cannot open\n", argv[1]); return 1; }
    int w = fgetc(f), h = fgetc(f), n = fgetc(f);
    fprintf(stderr, "Input #0, clip, from '%s': %dx%d, %d frames\n", argv[1], w, h, n);
    for (int t = 0; t < n; t++) {
        for (int i = 0; i < w * h; i++) {
            int c = fgetc(f);
            if (c == EOF || c >= 240) {
                fprintf(stderr, "[clip @ %p] error while decoding MB %d %d in frame %d, concealing\n", (void *)f, i % w, i / w, t);
                c = 128;
            }
            putchar(c);
        }
        fflush(stdout);
    }
    fclose(f);
    return 0;
}
