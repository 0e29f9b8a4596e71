"""The outputs: text, JSON lines, HTTP and Prometheus. They read the engine through `view.HubView` and judge
nothing."""
