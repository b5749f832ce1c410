//! Published examples: requests, replies, their sources, and the reasons for differences of this server.
//!
//! Abbreviations in print are completed: comments and `...` are omitted, `"..."` stands for anything, and examples printed
//! without an envelope have one.

/// Printed request and reply.
pub(super) struct Exchange {
    /// Source of the example.
    pub(super) from: &'static str,
    pub(super) request: &'static str,
    /// A reply, or a list of the events of a stream.
    pub(super) answer: &'static str,
    pub(super) differs: &'static [Differs],
}

/// JSON pointer into the reply, actual value (empty if the member is absent), and reason.
pub(super) type Differs = (&'static str, &'static str, &'static str);

/// Consecutive exchanges that share ids.
pub(super) type Scene = &'static [Exchange];

pub(super) const JOKE: Scene = &[Exchange {
    from: "the specification of 0.2, 9.2: a joke, as a task",
    request: r#"{"jsonrpc":"2.0","id":1,"method":"message/send","params":{"message":{"role":"user",
        "parts":[{"kind":"text","text":"tell me a joke"}],"messageId":"9229e770-767c-417b-a0b0-f0741243c589"},"metadata":{}}}"#,
    answer: r#"{"jsonrpc":"2.0","id":1,"result":{"id":"363422be-b0f9-4692-a24d-278670e7c7f1",
        "contextId":"c295ea44-7543-4f78-b524-7a38915ad6e4","status":{"state":"completed"},
        "artifacts":[{"artifactId":"9b6934dd-37e3-4eb1-8766-962efaab63a1","name":"joke","parts":[{"kind":"text",
            "text":"Why did the chicken cross the road? To get to the other side!"}]}],
        "history":[{"role":"user","parts":[{"kind":"text","text":"tell me a joke"}],
            "messageId":"9229e770-767c-417b-a0b0-f0741243c589","taskId":"363422be-b0f9-4692-a24d-278670e7c7f1",
            "contextId":"c295ea44-7543-4f78-b524-7a38915ad6e4"}],
        "kind":"task","metadata":{}}}"#,
    differs: &[],
}];

pub(super) const JOKE_WITHOUT_A_TASK: Scene = &[Exchange {
    from: "the specification of 0.2, 9.2: a joke, without a task",
    request: JOKE[0].request,
    answer: r#"{"jsonrpc":"2.0","id":1,"result":{"messageId":"363422be-b0f9-4692-a24d-278670e7c7f1",
        "contextId":"c295ea44-7543-4f78-b524-7a38915ad6e4","parts":[{"kind":"text",
            "text":"Why did the chicken cross the road? To get to the other side!"}],"kind":"message","metadata":{}}}"#,
    differs: &[],
}];

const SECTION: &str = "0.3, 6.5: the discriminator of parts is `kind`";

pub(super) const PAPER: Scene = &[Exchange {
    from: "the specification of 0.2, 9.3: a paper about a picture, as a stream",
    request: r#"{"jsonrpc":"2.0","id":1,"method":"message/stream","params":{"message":{"role":"user","parts":[
            {"kind":"text","text":"write a long paper describing the attached pictures"},
            {"kind":"file","file":{"mimeType":"image/png","data":"iVBORw0KGgo="}}],
        "messageId":"bbb7dee1-cf5c-4683-8a6f-4114529da5eb"},"metadata":{}}}"#,
    answer: r#"[{"jsonrpc":"2.0","id":1,"result":{"id":"225d6247-06ba-4cda-a08b-33ae35c8dcfa",
            "contextId":"05217e44-7e9f-473e-ab4f-2c2dde50a2b1",
            "status":{"state":"submitted","timestamp":"2025-04-02T16:59:25.331844"},
            "history":[{"role":"user","parts":[
                    {"kind":"text","text":"write a long paper describing the attached pictures"},
                    {"kind":"file","file":{"mimeType":"image/png","data":"iVBORw0KGgo="}}],
                "messageId":"bbb7dee1-cf5c-4683-8a6f-4114529da5eb","taskId":"225d6247-06ba-4cda-a08b-33ae35c8dcfa",
                "contextId":"05217e44-7e9f-473e-ab4f-2c2dde50a2b1"}],
            "kind":"task","metadata":{}}},
        {"jsonrpc":"2.0","id":1,"result":{"taskId":"225d6247-06ba-4cda-a08b-33ae35c8dcfa",
            "contextId":"05217e44-7e9f-473e-ab4f-2c2dde50a2b1",
            "artifact":{"artifactId":"9b6934dd-37e3-4eb1-8766-962efaab63a1","parts":[{"type":"text","text":"<section 1...>"}]},
            "append":false,"lastChunk":false,"kind":"artifact-update"}},
        {"jsonrpc":"2.0","id":1,"result":{"taskId":"225d6247-06ba-4cda-a08b-33ae35c8dcfa",
            "contextId":"05217e44-7e9f-473e-ab4f-2c2dde50a2b1",
            "artifact":{"artifactId":"9b6934dd-37e3-4eb1-8766-962efaab63a1","parts":[{"type":"text","text":"<section 2...>"}]},
            "append":true,"lastChunk":false,"kind":"artifact-update"}},
        {"jsonrpc":"2.0","id":1,"result":{"taskId":"225d6247-06ba-4cda-a08b-33ae35c8dcfa",
            "contextId":"05217e44-7e9f-473e-ab4f-2c2dde50a2b1",
            "artifact":{"artifactId":"9b6934dd-37e3-4eb1-8766-962efaab63a1","parts":[{"type":"text","text":"<section 3...>"}]},
            "append":true,"lastChunk":true,"kind":"artifact-update"}},
        {"jsonrpc":"2.0","id":1,"result":{"taskId":"225d6247-06ba-4cda-a08b-33ae35c8dcfa",
            "contextId":"05217e44-7e9f-473e-ab4f-2c2dde50a2b1",
            "status":{"state":"completed","timestamp":"2025-04-02T16:59:35.331844"},"final":true,"kind":"status-update"}}]"#,
    differs: &[
        ("/0/result/history/0/parts/1/file/data", "", "0.3, 6.6.1: the member for file bytes is `bytes`"),
        (
            "/0/result/history/0/parts/1/file/bytes",
            r#""iVBORw0KGgo=""#,
            "0.3, 6.6.1: the member for file bytes is `bytes`",
        ),
        ("/1/result/artifact/parts/0/type", "", SECTION),
        ("/1/result/artifact/parts/0/kind", r#""text""#, SECTION),
        ("/2/result/artifact/parts/0/type", "", SECTION),
        ("/2/result/artifact/parts/0/kind", r#""text""#, SECTION),
        ("/3/result/artifact/parts/0/type", "", SECTION),
        ("/3/result/artifact/parts/0/kind", r#""text""#, SECTION),
    ],
}];

pub(super) const FLIGHT: Scene = &[
    Exchange {
        from: "the specification of 0.2, 9.4: a flight booking, with a question for the details",
        request: r#"{"jsonrpc":"2.0","id":"req-003","method":"message/send","params":{"message":{"role":"user",
            "parts":[{"kind":"text","text":"I'd like to book a flight."}]},"messageId":"c53ba666-3f97-433c-a87b-6084276babe2"}}"#,
        answer: r#"{"jsonrpc":"2.0","id":"req-003","result":{"id":"3f36680c-7f37-4a5f-945e-d78981fafd36",
            "contextId":"c295ea44-7543-4f78-b524-7a38915ad6e4","status":{"state":"input-required","message":{"role":"agent",
                "parts":[{"kind":"text","text":"Sure, I can help with that! Where would you like to fly to, and from where? Also, what are your preferred travel dates?"}],
                "messageId":"c2e1b2dd-f200-4b04-bc22-1b0c65a1aad2","taskId":"3f36680c-7f37-4a5f-945e-d78981fafd36",
                "contextId":"c295ea44-7543-4f78-b524-7a38915ad6e4"},"timestamp":"2024-03-15T10:10:00Z"},
            "history":[{"role":"user","parts":[{"kind":"text","text":"I'd like to book a flight."}],
                "messageId":"c53ba666-3f97-433c-a87b-6084276babe2","taskId":"3f36680c-7f37-4a5f-945e-d78981fafd36",
                "contextId":"c295ea44-7543-4f78-b524-7a38915ad6e4"}],
            "kind":"task"}}"#,
        differs: &[],
    },
    Exchange {
        from: "the specification of 0.2, 9.4: the flight booking, with the details",
        request: r#"{"jsonrpc":"2.0","id":"req-004","method":"message/send","params":{"message":{"role":"user","parts":[{"kind":"text",
            "text":"I want to fly from New York (JFK) to London (LHR) around October 10th, returning October 17th."}],
            "contextId":"c295ea44-7543-4f78-b524-7a38915ad6e4","taskId":"3f36680c-7f37-4a5f-945e-d78981fafd36",
            "messageId":"0db1d6c4-3976-40ed-b9b8-0043ea7a03d3"},"configuration":{"blocking":true}}}"#,
        answer: r#"{"jsonrpc":"2.0","id":"req-004","result":{"id":"3f36680c-7f37-4a5f-945e-d78981fafd36",
            "contextId":"c295ea44-7543-4f78-b524-7a38915ad6e4","status":{"state":"completed","message":{"role":"agent",
                "parts":[{"kind":"text","text":"Okay, I've found a flight for you. Confirmation XYZ123. Details are in the artifact."}]}},
            "artifacts":[{"artifactId":"9b6934dd-37e3-4eb1-8766-962efaab63a1","name":"FlightItinerary.json","parts":[{"kind":"data",
                "data":{"confirmationId":"XYZ123","from":"JFK","to":"LHR","departure":"2024-10-10T18:00:00Z",
                    "arrival":"2024-10-11T06:00:00Z","returnDeparture":"..."}}]}],
            "history":[
                {"role":"user","parts":[{"kind":"text","text":"I'd like to book a flight."}],
                    "messageId":"c53ba666-3f97-433c-a87b-6084276babe2","taskId":"3f36680c-7f37-4a5f-945e-d78981fafd36",
                    "contextId":"c295ea44-7543-4f78-b524-7a38915ad6e4"},
                {"role":"agent","parts":[{"kind":"text","text":"Sure, I can help with that! Where would you like to fly to, and from where? Also, what are your preferred travel dates?"}],
                    "messageId":"c2e1b2dd-f200-4b04-bc22-1b0c65a1aad2","taskId":"3f36680c-7f37-4a5f-945e-d78981fafd36",
                    "contextId":"c295ea44-7543-4f78-b524-7a38915ad6e4"},
                {"role":"user","parts":[{"kind":"text","text":"I want to fly from New York (JFK) to London (LHR) around October 10th, returning October 17th."}],
                    "contextId":"c295ea44-7543-4f78-b524-7a38915ad6e4","taskId":"3f36680c-7f37-4a5f-945e-d78981fafd36",
                    "messageId":"0db1d6c4-3976-40ed-b9b8-0043ea7a03d3"}],
            "kind":"task","metadata":{}}}"#,
        differs: &[],
    },
];

pub(super) const REPORT: Scene = &[Exchange {
    from: "the specification of 0.2, 9.5: a long-running report with a push configuration",
    request: r#"{"jsonrpc":"2.0","id":"req-005","method":"message/send","params":{"message":{"role":"user","parts":[{"kind":"text",
            "text":"Generate the Q1 sales report. This usually takes a while. Notify me when it's ready."}],
            "messageId":"6dbc13b5-bd57-4c2b-b503-24e381b6c8d6"},
        "configuration":{"pushNotificationConfig":{"url":"https://client.example.com/webhook/a2a-notifications",
            "token":"secure-client-token-for-task-aaa","authentication":{"schemes":["Bearer"]}}}}}"#,
    answer: r#"{"jsonrpc":"2.0","id":"req-005","result":{"id":"43667960-d455-4453-b0cf-1bae4955270d",
        "contextId":"c295ea44-7543-4f78-b524-7a38915ad6e4","status":{"state":"submitted","timestamp":"2024-03-15T11:00:00Z"}}}"#,
    differs: &[],
}];

pub(super) const FACES: Scene = &[Exchange {
    from: "the specification of 0.2, 9.6: faces in an image",
    request: r#"{"jsonrpc":"2.0","id":"req-007","method":"message/send","params":{"message":{"role":"user","parts":[
            {"kind":"text","text":"Analyze this image and highlight any faces."},
            {"kind":"file","file":{"name":"input_image.png","mimeType":"image/png","bytes":"iVBORw0KGgoAAAANSUhEUgAAAAUA"}}],
        "messageId":"6dbc13b5-bd57-4c2b-b503-24e381b6c8d6"}}}"#,
    answer: r#"{"jsonrpc":"2.0","id":"req-007","result":{"id":"43667960-d455-4453-b0cf-1bae4955270d",
        "contextId":"c295ea44-7543-4f78-b524-7a38915ad6e4","status":{"state":"completed","timestamp":"2024-03-15T12:05:00Z"},
        "artifacts":[{"artifactId":"9b6934dd-37e3-4eb1-8766-962efaab63a1","name":"processed_image_with_faces.png","parts":[{"kind":"file",
            "file":{"name":"output.png","mimeType":"image/png","uri":"https://storage.example.com/processed/task-bbb/output.png?token=xyz"}}]}],
        "kind":"task"}}"#,
    differs: &[],
}];

pub(super) const TICKETS: Scene = &[Exchange {
    from: "the specification of 0.2, 9.7: tickets in a requested format",
    request: r#"{"jsonrpc":"2.0","id":9,"method":"message/send","params":{"message":{"role":"user","parts":[{"kind":"text",
            "text":"Show me a list of my open IT tickets","metadata":{"mimeType":"application/json","schema":{"type":"array",
                "items":{"type":"object","properties":{"ticketNumber":{"type":"string"},"description":{"type":"string"}}}}}}],
        "messageId":"85b26db5-ffbb-4278-a5da-a7b09dea1b47"},"metadata":{}}}"#,
    answer: r#"{"jsonrpc":"2.0","id":9,"result":{"id":"d8c6243f-5f7a-4f6f-821d-957ce51e856c",
        "contextId":"c295ea44-7543-4f78-b524-7a38915ad6e4","status":{"state":"completed","timestamp":"2025-04-17T17:47:09.680794"},
        "artifacts":[{"artifactId":"c5e0382f-b57f-4da7-87d8-b85171fad17c","parts":[{"kind":"text",
            "text":"[{\"ticketNumber\":\"REQ12312\",\"description\":\"request for VPN access\"},{\"ticketNumber\":\"REQ23422\",\"description\":\"Add to DL - team-gcp-onboarding\"}]"}]}],
        "kind":"task"}}"#,
    differs: &[],
}];

/// First exchange of examples that are printed without it.
const BEFORE: Exchange = Exchange {
    from: "not printed: the task of the following examples",
    request: r#"{"jsonrpc":"2.0","id":0,"method":"message/send","params":{"message":{"role":"user","parts":[{"kind":"text","text":"Order"}],
        "messageId":"msg-122"}}}"#,
    answer: r#"{"jsonrpc":"2.0","id":0,"result":{"id":"task-789","contextId":"ctx-456","status":{"state":"input-required","message":"..."}}}"#,
    differs: &[],
};

pub(super) const ORDERS: Scene = &[
    BEFORE,
    Exchange {
        from: "the page of core methods: message/send, answered with a task",
        request: r#"{"jsonrpc":"2.0","id":"req-001","method":"message/send","params":{"message":{"role":"user",
                "parts":[{"kind":"text","text":"Process order #12345"}],"messageId":"msg-123","contextId":"ctx-456","taskId":"task-789"},
            "configuration":{"blocking":true,"pushNotificationConfig":{"url":"https://client.com/webhook","token":"secret-token"}},
            "metadata":{}}}"#,
        answer: r#"{"jsonrpc":"2.0","id":"req-001","result":{"id":"task-789","contextId":"ctx-456",
            "status":{"state":"working","timestamp":"2024-01-20T10:30:00Z"},"artifacts":[],"history":"...","kind":"task"}}"#,
        differs: &[
            (
                "/result/status/state",
                r#""completed""#,
                "0.3, 7.1.2: `blocking` waits until there is nothing left to wait for",
            ),
            ("/result/artifacts", r#""...""#, "and then there is something that came of it"),
        ],
    },
    Exchange {
        from: "the page of core methods: tasks/get",
        request: r#"{"jsonrpc":"2.0","id":"req-002","method":"tasks/get","params":{"id":"task-789","historyLength":10}}"#,
        answer: r#"{"jsonrpc":"2.0","id":"req-002","result":{"id":"task-789","contextId":"ctx-456",
            "status":{"state":"completed","timestamp":"2024-01-20T10:35:00Z"},
            "artifacts":[{"artifactId":"artifact-001","name":"order_confirmation.json","parts":[{"kind":"data",
                "data":{"orderId":"12345","status":"confirmed","total":299.99}}]}],
            "history":"...","metadata":{}}}"#,
        differs: &[],
    },
    Exchange {
        from: "the page of core methods: tasks/resubscribe, of the task, which is terminal by then",
        request: r#"{"jsonrpc":"2.0","id":"req-005","method":"tasks/resubscribe","params":{"id":"task-789"}}"#,
        answer: r#"[{"jsonrpc":"2.0","id":"req-005","result":{"kind":"task","id":"task-789","contextId":"ctx-456",
                "status":{"state":"completed","timestamp":"2024-01-20T10:30:00Z"},"history":"...","artifacts":"..."}},
            {"jsonrpc":"2.0","id":"req-005","result":{"kind":"status-update","taskId":"task-789","contextId":"ctx-456",
                "status":{"state":"completed","timestamp":"2024-01-20T10:30:03Z"},"final":true}}]"#,
        differs: &[],
    },
];

pub(super) const ORDERS_WITHOUT_A_TASK: Scene = &[Exchange {
    from: "the page of core methods: message/send, answered with a message",
    request: r#"{"jsonrpc":"2.0","id":"req-001","method":"message/send","params":{"message":{"role":"user",
        "parts":[{"kind":"text","text":"Process order #12345"}],"messageId":"msg-123","contextId":"ctx-456"},
        "configuration":{"blocking":true},"metadata":{}}}"#,
    answer: r#"{"jsonrpc":"2.0","id":"req-001","result":{"role":"agent","parts":[{"kind":"text",
            "text":"Order #12345 has been processed successfully"}],"kind":"message","messageId":"msg-agent-456",
        "contextId":"ctx-456","taskId":"task-789"}}"#,
    differs: &[("/result/taskId", "", "a message reply has no task")],
}];

pub(super) const ORDERS_CANCELED: Scene = &[
    BEFORE,
    Exchange {
        from: "the page of core methods: tasks/cancel",
        request: r#"{"jsonrpc":"2.0","id":"req-003","method":"tasks/cancel","params":{"id":"task-789"}}"#,
        answer: r#"{"jsonrpc":"2.0","id":"req-003","result":{"id":"task-789","contextId":"ctx-456",
            "status":{"state":"cancelled","timestamp":"2024-01-20T10:32:00Z"},"artifacts":[],"history":"...","metadata":{}}}"#,
        differs: &[("/result/status/state", r#""canceled""#, "0.3, 6.3, and the notes of the page")],
    },
];

pub(super) const ORDERS_STREAMED: Scene = &[Exchange {
    from: "the page of core methods: message/stream, with a request as that of message/send",
    request: r#"{"jsonrpc":"2.0","id":"req-004","method":"message/stream","params":{"message":{"role":"user",
        "parts":[{"kind":"text","text":"Process order #12345"}],"messageId":"msg-123"},"configuration":{"blocking":true},"metadata":{}}}"#,
    answer: r#"[{"jsonrpc":"2.0","id":"req-004","result":{"kind":"task","id":"task-789","contextId":"ctx-456",
            "status":{"state":"submitted","timestamp":"2024-01-20T10:30:00Z"},"history":[],"artifacts":[]}},
        {"jsonrpc":"2.0","id":"req-004","result":{"kind":"status-update","taskId":"task-789","contextId":"ctx-456",
            "status":{"state":"working","message":{"kind":"message","role":"agent","messageId":"msg-001",
                "parts":[{"kind":"text","text":"Processing your request..."}],"taskId":"task-789","contextId":"ctx-456"},
                "timestamp":"2024-01-20T10:30:01Z"},"final":false}},
        {"jsonrpc":"2.0","id":"req-004","result":{"kind":"artifact-update","taskId":"task-789","contextId":"ctx-456",
            "artifact":{"artifactId":"a-001","name":"result.txt","parts":[{"kind":"text","text":"Processing..."}]},
            "append":false,"lastChunk":true}},
        {"jsonrpc":"2.0","id":"req-004","result":{"kind":"status-update","taskId":"task-789","contextId":"ctx-456",
            "status":{"state":"completed","timestamp":"2024-01-20T10:30:03Z"},"final":true}}]"#,
    differs: &[("/0/result/history", r#""...""#, "0.3, 6.1: the history has the message of the task")],
}];

pub(super) const ORDERS_ERROR: Scene = &[Exchange {
    from: "the page of core methods: an error in place of an event",
    request: r#"{"jsonrpc":"2.0","id":"req-004","method":"tasks/resubscribe","params":{"id":"nobody's"}}"#,
    answer: r#"[{"jsonrpc":"2.0","id":"req-004","error":{"code":-32603,"message":"Internal error",
        "data":{"details":"Stream terminated unexpectedly"}}}]"#,
    differs: &[
        ("/0/error/code", "-32001", "0.3, 8.2: the task does not exist, which is not an internal error"),
        (
            "/0/error/message",
            r#""Task not found: nobody's""#,
            "0.3, 8.2: the task does not exist, which is not an internal error",
        ),
        ("/0/error/data", "", "clients of 0.3 expect different types of it; every client reads an error without it"),
    ],
}];

const WRITE_ONLY: &str = "secrets of a push configuration are not returned";

pub(super) const ORDERS_PUSH: Scene = &[
    BEFORE,
    Exchange {
        from: "the page of core methods: tasks/pushNotificationConfig/set",
        request: r#"{"jsonrpc":"2.0","id":"req-006","method":"tasks/pushNotificationConfig/set","params":{"taskId":"task-789",
            "pushNotificationConfig":{"url":"https://client.com/webhook",
                "headers":{"Authorization":"Bearer webhook-secret","X-Custom-Header":"value"}}}}"#,
        answer: r#"{"jsonrpc":"2.0","id":"req-006","result":{"success":true}}"#,
        differs: &[("/result/success", "", "0.3, 7.5: the result is the configuration")],
    },
    Exchange {
        from: "not printed: reading the configuration (0.3, 7.6)",
        request: r#"{"jsonrpc":"2.0","id":"req-008","method":"tasks/pushNotificationConfig/get","params":{"id":"task-789"}}"#,
        answer: r#"{"jsonrpc":"2.0","id":"req-008","result":{"taskId":"task-789","pushNotificationConfig":{"id":"default","url":"https://client.com/webhook",
            "headers":{"Authorization":"Bearer webhook-secret","X-Custom-Header":"value"}}}}"#,
        differs: &[("/result/pushNotificationConfig/headers", "", WRITE_ONLY)],
    },
];

pub(super) const EXTENDED_CARD: Scene = &[Exchange {
    from: "the page of core methods: agent/authenticatedExtendedCard",
    request: r#"{"jsonrpc":"2.0","id":"req-007","method":"agent/authenticatedExtendedCard"}"#,
    answer: r#"{"jsonrpc":"2.0","id":"req-007","result":{}}"#,
    differs: &[
        ("/result", "", "0.3, 7.10: the public card declares no extended card"),
        ("/error", r#"{"code":-32007,"message":"..."}"#, "0.3, 8.2"),
    ],
}];

pub(super) const RESEARCHER: Scene = &[
    Exchange {
        from: "the researcher's page: message/send",
        request: r#"{"jsonrpc":"2.0","id":1,"method":"message/send","params":{"message":{"role":"user",
            "parts":[{"kind":"text","text":"Research quantum computing trends"}],"messageId":"m-1"}}}"#,
        answer: r#"{"jsonrpc":"2.0","id":1,"result":{"id":"9f1c...","contextId":"ab42...","kind":"task",
            "status":{"state":"completed","timestamp":"2026-06-10T12:00:00+00:00"},
            "artifacts":[{"artifactId":"...","name":"response","parts":[{"kind":"text","text":"..."}]}],"history":"..."}}"#,
        differs: &[],
    },
    Exchange {
        from: "the researcher's page: tasks/get",
        request: r#"{"jsonrpc":"2.0","id":2,"method":"tasks/get","params":{"id":"9f1c..."}}"#,
        answer: r#"{"jsonrpc":"2.0","id":2,"result":{"id":"9f1c...","contextId":"ab42...","kind":"task",
            "status":{"state":"completed","timestamp":"2026-06-10T12:00:00+00:00"},"artifacts":"...","history":"..."}}"#,
        differs: &[],
    },
    Exchange {
        from: "the researcher's page: tasks/cancel, of a task that completed with its send",
        request: r#"{"jsonrpc":"2.0","id":3,"method":"tasks/cancel","params":{"id":"9f1c..."}}"#,
        answer: r#"{"jsonrpc":"2.0","id":3,"error":{"code":-32002,"message":"..."}}"#,
        differs: &[],
    },
    Exchange {
        from: "the researcher's page: tasks/send, the alias of message/send",
        request: r#"{"jsonrpc":"2.0","id":4,"method":"tasks/send","params":{"message":{"role":"user",
            "parts":[{"kind":"text","text":"Research quantum computing trends"}],"messageId":"m-1"}}}"#,
        answer: r#"{"jsonrpc":"2.0","id":4,"result":{"id":"another","contextId":"another context","kind":"task",
            "status":{"state":"completed"},"artifacts":"...","history":"..."}}"#,
        differs: &[],
    },
];

pub(super) const REFERENCE: Scene = &[
    Exchange {
        from: "the reference of the Python types (0.2.5): a message of text",
        request: r#"{"jsonrpc":"2.0","method":"message/send","id":"req-001","params":{"message":{"messageId":"msg-001","role":"user",
            "kind":"message","parts":[{"kind":"text","text":"你好,你能如何帮助我?"}]}}}"#,
        answer: r#"{"jsonrpc":"2.0","id":"req-001","result":{"id":"task-001","contextId":"c","kind":"task","status":{"state":"completed"},
            "artifacts":[{"artifactId":"a","name":"echo","parts":[{"kind":"text","text":"你好,你能如何帮助我?"}]}]}}"#,
        differs: &[],
    },
    Exchange {
        from: "the reference of the Python types (0.2.5): a message with a file",
        request: r#"{"jsonrpc":"2.0","method":"message/send","id":"req-002","params":{"message":{"messageId":"msg-002","role":"user",
            "kind":"message","parts":[{"kind":"file","file":{"bytes":"JVBERi0xLjcK","name":"document.pdf","mimeType":"application/pdf"}}]}}}"#,
        answer: r#"{"jsonrpc":"2.0","id":"req-002","result":{"id":"task-002","contextId":"d","kind":"task","status":{"state":"completed"},
            "artifacts":[{"artifactId":"b","name":"seen","parts":[{"kind":"file",
                "file":{"bytes":"JVBERi0xLjcK","name":"document.pdf","mimeType":"application/pdf"}}]}]}}"#,
        differs: &[],
    },
    Exchange {
        from: "the reference of the Python types (0.2.5): the state of a task",
        request: r#"{"jsonrpc":"2.0","method":"tasks/get","id":"req-002","params":{"id":"task-001","historyLength":10}}"#,
        answer: r#"{"jsonrpc":"2.0","id":"req-002","result":{"id":"task-001","contextId":"c","kind":"task","status":{"state":"completed"},
            "artifacts":"...","history":"..."}}"#,
        differs: &[],
    },
];

pub(super) const REFERENCE_PUSH: Scene = &[
    BEFORE,
    Exchange {
        from: "the reference of the Python types (0.2.5): a webhook with a scheme",
        request: r#"{"jsonrpc":"2.0","method":"tasks/pushNotificationConfig/set","id":"req-003","params":{"taskId":"task-789",
            "pushNotificationConfig":{"url":"https://my-app.com/webhook/task-updates",
                "authentication":{"schemes":["Bearer"],"credentials":"my-auth-token"}}}}"#,
        answer: r#"{"jsonrpc":"2.0","id":"req-003","result":{"taskId":"task-789",
            "pushNotificationConfig":{"id":"default","url":"https://my-app.com/webhook/task-updates",
                "authentication":{"schemes":["Bearer"],"credentials":"my-auth-token"}}}}"#,
        differs: &[("/result/pushNotificationConfig/authentication/credentials", "", WRITE_ONLY)],
    },
];
