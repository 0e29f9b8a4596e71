import http.server
import multiprocessing


class Exporter:
    """A small HTTP server in a process of its own, so that scrapes do not disturb the steps."""

    def __init__(self):
        ctx = multiprocessing.get_context("fork")
        self.best = ctx.Value("d", 0.0)
        self.proc = ctx.Process(target=self.serve, daemon=True, name="metrics")
        self.proc.start()

    def serve(self):
        best = self.best

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                body = f"eval_best {best.value}\n".encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args):
                pass

        http.server.HTTPServer(("127.0.0.1", 0), Handler).serve_forever()
