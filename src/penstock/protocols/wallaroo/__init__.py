"""The Wallaroo connector protocol: streams of messages from connectors, paid for with credits."""
