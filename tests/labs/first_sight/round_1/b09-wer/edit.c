/* weighted edit distance, gcc -O1 -shared -fPIC -o libedit.so edit.c */
static int min3(int a, int b, int c) { int m = a < b ? a : b; return m < c ? m : c; }
int edit_distance(const int *a, int n, const int *b, int m) {
    int d[n + 1][m + 1];
    for (int i = 0; i <= n; i++) d[i][0] = i;
    for (int j = 0; j <= m; j++) d[0][j] = j;
    for (int i = 1; i <= n; i++)
        for (int j = 1; j <= m; j++)
            d[i][j] = min3(d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] != b[j - 1]));
    return d[n][m];
}
